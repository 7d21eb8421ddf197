"""The SQL core in Python: one method per SQL function, rows in, values out, no decisions."""
