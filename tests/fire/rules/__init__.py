"""The rules that must hold after a run, as functions that yield breaches; see referee.py."""
