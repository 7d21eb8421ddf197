"""The way to Postgres: finding it, connecting, keeping the schema, turning its errors into ours."""
