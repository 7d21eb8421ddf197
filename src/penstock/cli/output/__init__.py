"""Shared by all commands: opening the database, and printing text or JSON."""
