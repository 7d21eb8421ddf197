"""Decides how many jobs to claim, and when."""
