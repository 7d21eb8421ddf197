"""Callers' own connections, of any driver, used inside the caller's transaction."""
