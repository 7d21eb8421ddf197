"""JSON on its way to the database, and refusals that name what is wrong with it."""
