"""Running one attempt: in the event loop, in a thread or in a process, to an outcome."""
