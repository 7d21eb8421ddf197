"""Pages about jobs: the list, one job, a batch, many jobs at once."""
