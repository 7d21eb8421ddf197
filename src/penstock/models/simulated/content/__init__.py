"""The texts and pictures of the simulated model."""
