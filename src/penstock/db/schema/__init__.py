"""The schema: its migrations, its replaceable functions, and how a database is migrated."""
