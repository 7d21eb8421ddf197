"""The attempts that a worker runs: one attempt, all that are open, and the slots they use."""
