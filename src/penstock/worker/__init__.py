"""Runs jobs: claims them, calls their handlers, records how they finished."""
