"""Watches the event loop: whether a handler blocks it, which one, and what time others lose."""
