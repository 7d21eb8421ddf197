"""Handlers as apps declare them: their parameters, the job they receive, what they may raise."""
