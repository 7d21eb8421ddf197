"""Writing progress and outcomes to the database in batches."""
