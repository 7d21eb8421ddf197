"""The way to Postgres: connections, the embedded server, the schema, but nothing about jobs."""
