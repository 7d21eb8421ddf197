"""The embedded Postgres: its files, its server process, and the user it runs as."""
