"""Classify failures: from an exception or an answer to a class, a cost and an outcome."""
