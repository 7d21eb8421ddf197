"""Accounts, credits, keys, browser sessions and erasure."""
