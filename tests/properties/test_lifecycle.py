"""Random walks through the lifecycle: any step, in any order, compared with a model.

`make test` takes a hundred walks, always the same; `make faults` thousands, always others.
"""

import pytest

from properties.callers import Callers
from properties.upkeep import Upkeep
from properties.walks import walk
from properties.workers import Workers
from properties.world import World
from support.shapes import Scale

LONG_RUN = 3_000
STEPS = 50


class Jobs(Callers, Workers, Upkeep):
    # Rules are chosen evenly. Work has to go on for anything to be disturbed, so it counts double.
    claim_more = Workers.claim
    finish_more = Workers.finish
    tidy_more = Upkeep.tidy


@pytest.mark.timeout(1_800)  # a run of thousands, and the shrinking of what it finds
def test_no_walk_through_the_lifecycle_breaks_an_invariant(world: World, scale: Scale) -> None:
    walk(lambda: Jobs(world), scale, many=LONG_RUN, steps=STEPS)
