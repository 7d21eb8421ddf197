"""The pages that operators keep open."""
