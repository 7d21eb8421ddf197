"""The watch of the event loop: whether a handler blocks it, which one, and what others lose."""
