"""Handlers as an app writes them: their parameters, the job they receive, what they may raise."""
