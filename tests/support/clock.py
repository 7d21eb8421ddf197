"""Moves the test clock."""

from penstock.client.testing import Clock

__all__ = ["Clock"]
