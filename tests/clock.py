"""The hands of the test clock."""

from penstock.testing import Clock

__all__ = ["Clock"]
