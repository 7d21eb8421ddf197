"""What must hold after a run, as functions that say what did not; referee.py has the table."""
