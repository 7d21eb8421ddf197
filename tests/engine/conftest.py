"""The engine on a database of the test's own."""

from support.engine_fixtures import *  # noqa: F403  # fixtures, by their names
