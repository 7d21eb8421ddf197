"""What an app declares, in Python or in penstock.toml, and how it reaches the database."""
