"""The embedded Postgres: its files, its server process, and its operating system user."""
