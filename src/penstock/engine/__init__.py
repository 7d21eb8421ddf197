"""The SQL core in Python: one method per SQL function. Rows in, values out; it decides nothing."""
