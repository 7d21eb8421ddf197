"""Pages about queues and workers: limits, circuits, stuck jobs."""
