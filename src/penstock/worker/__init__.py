"""Runs jobs: claims them, calls their handlers, reports how they ended."""
