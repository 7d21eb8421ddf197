"""Calls out of the process: the HTTP client, which addresses may be called, and what went wrong."""
