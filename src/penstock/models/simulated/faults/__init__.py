"""What can be wrong with the simulated model, how it is ordered, how it looks on the wire."""
