"""The faults of the simulated model: how they are ordered and what is sent."""
