"""Keys derived from the secret, signatures, callback tokens, and redaction of secrets in texts."""
