"""What can be wrong with the simulated model, and how faults are ordered."""
