"""The SQL core in Python: a method for each SQL function, from rows to values, no decisions."""
