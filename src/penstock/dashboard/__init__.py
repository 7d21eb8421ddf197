"""The operators' pages. What they show comes from the engine; nothing is decided here."""
