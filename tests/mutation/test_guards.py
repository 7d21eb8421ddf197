"""The test of the tests: take one guard out of the SQL, and something must go wrong.

Each guard (see guards.py) has a scenario that plays well on our SQL and ill on the mutant. Where
two guards protect one thing, the scenario says which one is taken away both times, and the other
one is tried alone.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from clock import Clock
from cluster import Cluster
from mutation import claiming, finishing, submitting, upkeeping, waiting_jobs
from mutation.guards import Edit, guards, marks, mutants
from mutation.scene import CASES, Case, Scenario, Scene
from penstock.db.pool import prepare

assert {claiming, finishing, submitting, upkeeping, waiting_jobs}  # imported for their scenarios

SOUND = {(case.scenario, case.beside): case for case in CASES.values()}


def name(case: Case) -> str:
    return case.guard


def story(case: Case) -> str:
    return getattr(case.scenario, "__name__", "?")


def test_every_guard_has_a_scenario_and_every_scenario_a_guard() -> None:
    assert sorted(CASES) == sorted(guards())


def test_no_mark_stands_where_no_function_is() -> None:
    assert marks() == len(guards())


@asynccontextmanager
async def database(cluster: Cluster, without: Iterable[str | Edit]) -> AsyncIterator[Scene]:
    """A fresh database whose functions lack these guards."""
    opened: list[asyncpg.Connection] = []
    with cluster.database() as name:

        async def connect() -> asyncpg.Connection:
            opened.append(await asyncpg.connect(cluster.dsn(name)))
            await prepare(opened[-1])
            return opened[-1]

        conn, clock = await connect(), Clock(await connect())
        for function in mutants(without):
            await conn.execute(function)
        await clock.freeze()
        yield Scene(conn, clock, connect)
        for conn in opened:
            conn.terminate()


async def play(scenario: Scenario, scene: Scene) -> None:
    """Afterwards every invariant holds, and there is nothing to repair."""
    await scenario(scene)
    broken = await scene.conn.fetch("select * from penstock.check()")
    assert not broken, broken
    repaired = await scene.conn.fetch("select * from penstock.reconcile()")
    assert not repaired, repaired


@pytest.mark.parametrize("case", SOUND.values(), ids=story)
async def test_the_scenario_plays_well_on_our_sql(cluster: Cluster, case: Case) -> None:
    async with database(cluster, case.beside) as scene:
        await play(case.scenario, scene)


@pytest.mark.parametrize("case", CASES.values(), ids=name)
async def test_without_the_guard_it_goes_wrong(cluster: Cluster, case: Case) -> None:
    async with database(cluster, [*case.beside, case.guard]) as scene:
        with pytest.raises(case.raises, match=case.match):
            await play(case.scenario, scene)
