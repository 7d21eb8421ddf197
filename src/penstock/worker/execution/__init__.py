"""Runs one attempt in the event loop, in a thread or in a process, and returns its outcome."""
