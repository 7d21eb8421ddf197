"""Middleware around every request: ids, logs, limits, headers, errors."""
