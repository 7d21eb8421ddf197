"""Access to Postgres: connections, the embedded server, the schema; nothing about jobs."""
