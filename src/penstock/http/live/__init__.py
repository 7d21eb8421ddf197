"""Live streams: one hub per process reads what changed and sends it to its watchers."""
