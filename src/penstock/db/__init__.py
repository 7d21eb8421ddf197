"""The way to Postgres: connections, the embedded server, the schema. It knows nothing of jobs."""
