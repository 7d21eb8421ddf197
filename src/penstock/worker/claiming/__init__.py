"""Deciding how many jobs to claim, and when."""
