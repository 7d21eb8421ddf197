"""What the simulated model says and draws."""
