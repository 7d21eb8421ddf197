"""Live streams: one hub per process reads changes and sends them to its watchers."""
