"""Migrations and replaceable functions: what the schema should be, and how it gets there."""
