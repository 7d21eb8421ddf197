"""The test of the tests: without one guard in the SQL, its scenario must fail.

Each guard (see guards.py) has a scenario that plays well on our SQL and ill on the mutant. Where
two guards protect one thing, the scenario says which one is taken away both times, and the other
one is tried alone.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager

import asyncpg
import psycopg
import pytest

from mutation import (
    blocking,
    circuits,
    claiming,
    finishing,
    living,
    measuring,
    operating,
    progressing,
    seeing,
    spending,
    stepping,
    submitting,
    telling,
    upkeeping,
    waiting_jobs,
)
from mutation.guards import Edit, guards, marks, mutants, sources
from mutation.scene import CASES, Case, Scenario, Scene
from penstock.db.connections.pool import prepare
from support.clock import Clock
from support.cluster import Cluster

# Imported to register their scenarios.
assert {blocking, circuits, claiming, finishing, living, measuring, operating}
assert {progressing, seeing, spending, stepping, submitting, telling, upkeeping, waiting_jobs}

# Functions that the next scenario must restore, because this one loads a mutant.
SPOILT: set[str] = set()

EMPTY = """
delete from penstock.job;
delete from penstock.finished;
delete from penstock.attempt;
delete from penstock.late_result;
delete from penstock.step;
delete from penstock.chunk;
delete from penstock.pending_on_finish;
delete from penstock.delivery;
delete from penstock.job_webhook;
delete from penstock.idempotency;
delete from penstock.batch;
delete from penstock.recent_submit;
alter table penstock.ledger disable trigger user;
alter table penstock.resolution disable trigger user;
delete from penstock.ledger;
delete from penstock.resolution;
alter table penstock.ledger enable trigger user;
alter table penstock.resolution enable trigger user;
delete from penstock.lane;
delete from penstock.worker;
delete from penstock.blocked_loop;
delete from penstock.blocked_loop_total;
delete from penstock.kind;
delete from penstock.queue;
delete from penstock.account where id <> 0;
delete from penstock.plan;
delete from penstock.hourly_bucket;
delete from penstock.erasure;
delete from penstock.closed_session;
update penstock.rollup set counted_until = clock_timestamp(),
  settled_until = date_trunc('hour', clock_timestamp(), 'UTC');
update penstock.account set running = 0;
update penstock.test_clock set moved = '0'
"""

SOUND = {(case.scenario, case.beside): case for case in CASES.values()}


def name(case: Case) -> str:
    return case.guard


def story(case: Case) -> str:
    return getattr(case.scenario, "__name__", "?")


def test_every_guard_has_a_scenario_and_every_scenario_a_guard() -> None:
    assert sorted(CASES) == sorted(guards())


def test_no_mark_stands_where_no_function_is() -> None:
    assert marks() == len(guards())


def test_each_guard_can_be_taken_out_and_each_replacement_fits_its_line() -> None:
    for guard in CASES:
        [(function, text)] = mutants([guard]).items()
        assert text != sources()[function][1], f"the mutant without {guard} is our SQL"


@pytest.fixture(scope="module")
def house(cluster: Cluster) -> Iterator[str]:
    """One database for all scenarios: creating one takes longer than running a scenario."""
    with cluster.database() as name:
        yield name


@pytest.fixture
def fresh(cluster: Cluster, house: str) -> str:
    """The address of that database, emptied and with the original functions."""
    cluster.disconnect(house)  # sessions that a mutant left open would hold locks
    with psycopg.connect(cluster.dsn(house), autocommit=True) as conn:
        conn.execute(EMPTY)
        while SPOILT:
            conn.execute(sources()[SPOILT.pop()][1].encode())
    return cluster.dsn(house)


@asynccontextmanager
async def stage(dsn: str, without: Iterable[str | Edit]) -> AsyncIterator[Scene]:
    """Yield the database with functions that lack these guards."""
    opened: list[asyncpg.Connection] = []

    async def connect() -> asyncpg.Connection:
        opened.append(await asyncpg.connect(dsn))
        await prepare(opened[-1])
        return opened[-1]

    try:
        conn, clock = await connect(), Clock(await connect())
        for function, text in mutants(without).items():
            SPOILT.add(function)
            await conn.execute(text)
        yield Scene(conn, clock, connect)
    finally:
        for conn in opened:
            conn.terminate()


async def play(scenario: Scenario, scene: Scene) -> None:
    """Run a scenario; afterwards every invariant must hold, with nothing to repair."""
    try:
        await scenario(scene)
    except pytest.fail.Exception as error:  # a statement that should be refused was not
        raise AssertionError(str(error)) from error
    broken = await scene.conn.fetch("select * from penstock.check()")
    assert not broken, broken
    repaired = await scene.conn.fetch("select * from penstock.reconcile()")
    assert not repaired, repaired


@pytest.mark.parametrize("case", SOUND.values(), ids=story)
async def test_the_scenario_plays_well_on_our_sql(fresh: str, case: Case) -> None:
    async with stage(fresh, case.beside) as scene:
        await play(case.scenario, scene)


@pytest.mark.parametrize("case", CASES.values(), ids=name)
async def test_without_the_guard_it_goes_wrong(fresh: str, case: Case) -> None:
    async with stage(fresh, [*case.beside, case.guard]) as scene:
        with pytest.raises(case.raises, match=case.match):
            await play(case.scenario, scene)
