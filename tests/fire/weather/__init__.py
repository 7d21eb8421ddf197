"""Faults by name, each of which begins and ends by itself, and a forecast of them from a seed."""
