"""What happens around every request: ids, logs, limits, headers, errors."""
