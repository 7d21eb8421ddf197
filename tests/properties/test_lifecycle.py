"""A walk through the life of jobs: any step, in any order, beside a model that knows better.

`make test` takes a hundred walks, always the same; `make faults` thousands, always others.
"""

from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

from properties.callers import Callers
from properties.upkeep import Upkeep
from properties.workers import Workers
from properties.world import World
from support.cluster import Cluster
from support.shapes import Scale

LONG_RUN = 3_000
STEPS = 50


class Jobs(Callers, Workers, Upkeep):
    # Rules are chosen evenly. Work has to go on for anything to be disturbed, so it counts double.
    claim_more = Workers.claim
    finish_more = Workers.finish
    tidy_more = Upkeep.tidy


@pytest.fixture
def world(cluster: Cluster) -> Iterator[World]:
    with cluster.database() as name:
        world = World(cluster.dsn(name))
        yield world
        world.close()


@pytest.mark.timeout(1_800)  # a run of thousands, and the shrinking of what it finds
def test_no_walk_through_the_lifecycle_breaks_an_invariant(world: World, scale: Scale) -> None:
    class Walk(Jobs):
        def __init__(self) -> None:
            super().__init__(world)

    profile = hypothesis.settings()
    run_state_machine_as_test(
        Walk,
        settings=hypothesis.settings(
            profile,
            max_examples=scale(profile.max_examples, LONG_RUN),
            derandomize=scale(profile.derandomize, False),
            stateful_step_count=STEPS,
            # Each try at an explanation costs a walk, and the walk itself explains enough.
            phases=set(hypothesis.Phase) - {hypothesis.Phase.explain},
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )
