"""Outgoing calls: the HTTP client, the addresses that may be called, and the errors of calls."""
