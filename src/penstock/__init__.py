"""Penstock: the durable queue for AI work, on Postgres alone."""
