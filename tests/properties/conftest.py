"""A world to walk through, on a database that all walks of a test share."""

from collections.abc import Iterator

import pytest

from properties.world import World
from support.cluster import Cluster


@pytest.fixture
def world(cluster: Cluster) -> Iterator[World]:
    with cluster.database() as name:
        world = World(cluster.dsn(name))
        yield world
        world.close()
