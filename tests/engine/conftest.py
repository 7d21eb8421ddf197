"""The engine on the test's own database."""

from support.engine_fixtures import *  # noqa: F403  # fixtures, by their names
