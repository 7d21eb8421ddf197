"""What every command shares: opening the database, and printing for people or as JSON."""
