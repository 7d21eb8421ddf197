"""Commands about the database: migrations, checks, pruning, measurements."""
