"""Feedback: a class hands in, one local model reads, and everybody sees when it is their turn."""
