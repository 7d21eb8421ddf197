"""JSON for the database, and errors that name what is wrong with a value."""
