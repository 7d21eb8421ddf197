"""Secrets, signatures and callback tokens, and taking secrets out of texts."""
