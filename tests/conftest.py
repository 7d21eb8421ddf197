"""Fixtures for every test: a database of its own, connections to it, and time that moves when told.

pytest                    everything but storms, on the embedded Postgres
pytest --postgres 15      on Debian's Postgres 15 instead
pytest --faults           the storms, and the long forms of what has a short one
pytest -m "not alone"     as `make test` does with -n 2; the rest follows without
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import hypothesis
import psycopg
import pytest

from clock import Clock
from cluster import DEBIAN, MIGRATED, Cluster, running
from penstock.db.pool import prepare
from shapes import Connect, Scale, T

# Databases answer when they answer; a red CI must be repeatable.
hypothesis.settings.register_profile("dev", max_examples=30, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
hypothesis.settings.register_profile("nightly", max_examples=5_000, deadline=None)
hypothesis.settings.load_profile("dev")

FAULTS_SECONDS = 1_800


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock")
    group.addoption(
        "--postgres",
        default=os.environ.get("PENSTOCK_TEST_POSTGRES"),
        help="run on this version of Debian's Postgres instead of the embedded one",
    )
    group.addoption("--faults", action="store_true", help="run storms and long forms, only")
    group.addoption("--write-schema", action="store_true", help="rewrite tests/contract/schema.sql")
    group.addoption("--screenshots", metavar="DIR", help="keep pictures of pages in this folder")


def pytest_configure(config: pytest.Config) -> None:
    version = config.getoption("--postgres")
    if version and not Path(DEBIAN.format(version=version), "postgres").exists():
        raise pytest.UsageError(f"there is no {DEBIAN.format(version=version)}/postgres")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    faults = config.getoption("--faults")
    keep: list[pytest.Item] = []
    drop: list[pytest.Item] = []
    for item in items:
        long_form = "scale" in getattr(item, "fixturenames", ())
        storm = item.get_closest_marker("faults") is not None
        wanted = (storm or long_form) if faults else not storm
        (keep if wanted else drop).append(item)
        if faults and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(FAULTS_SECONDS))
    items[:] = keep
    config.hook.pytest_deselected(items=drop)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The server of this run, shared by all xdist workers.

    Not below pytest's own temporary folders: of those, a fourth run removes the first one's.
    """
    run = getattr(request.config, "workerinput", {}).get("testrunuid", uuid.uuid4().hex)
    home = Path(tempfile.gettempdir(), f"penstock-test-{run}")
    with running(home, request.config.getoption("--postgres")) as cluster:
        yield cluster
    if not (home / "postgres" / "postmaster.pid").exists():
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def database(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """The address of a fresh database, for its owner; afterwards its invariants must hold."""
    with cluster.database() as name:
        yield cluster.dsn(name)
        if request.node.get_closest_marker("unsound") is None:
            cluster.disconnect(name)  # what a test left hanging would hold locks
            _assert_sound(cluster.dsn(name))


@pytest.fixture
def migrated(cluster: Cluster) -> Iterator[str]:
    """The address of a fresh database as users get it, without the test clock."""
    with cluster.database(template=MIGRATED) as name:
        yield cluster.dsn(name)


@pytest.fixture
def blank(cluster: Cluster) -> Iterator[str]:
    """The address of a fresh database without our schema."""
    with cluster.database(template=None) as name:
        yield cluster.dsn(name)


@pytest.fixture
async def connect(database: str) -> AsyncIterator[Connect]:
    """A way to open more connections to the test's database; all are closed at the end."""
    opened: list[asyncpg.Connection] = []

    async def open_one() -> asyncpg.Connection:
        conn = await asyncpg.connect(database)
        opened.append(conn)
        await prepare(conn)
        return conn

    yield open_one
    for conn in opened:
        # Not close(): that would wait for a statement a test left hanging on a lock.
        conn.terminate()


@pytest.fixture
async def conn(connect: Connect) -> asyncpg.Connection:
    """A connection to the test's database, as its owner."""
    return await connect()


@pytest.fixture
async def clock(connect: Connect) -> Clock:
    """The hands of `penstock.clock()` in the test's database."""
    return Clock(await connect())


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> Scale:
    """`scale(1_000, 100_000)`: the size for `make test`, or the one for `make faults`."""

    def pick(short: T, full: T) -> T:
        return full if request.config.getoption("--faults") else short

    return pick


def _assert_sound(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        broken = conn.execute("select * from penstock.check()").fetchall()
        assert not broken, f"invariants are broken: {broken}"
        repaired = conn.execute("select * from penstock.reconcile()").fetchall()
        assert not repaired, f"the reconciler had something to repair: {repaired}"
