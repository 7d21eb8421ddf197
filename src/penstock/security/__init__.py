"""Keys derived from the secret, signatures, callback tokens, and the redaction of texts."""
