"""Connections that a caller lends us, of whatever driver, used inside the caller's transaction."""
