"""Fixtures for every test: its own database, connections to it, and a clock that the test moves.

pytest                    everything but storms, on the embedded Postgres
pytest --postgres 15      on Debian's Postgres 15 instead
pytest --faults           the storms, and the long forms of what has a short one
pytest --seed 7           what is left to chance, as in the run that has told this seed
pytest -m "not alone"     as `make test` does with -n 4; the rest follows without
"""

import gc
import os
import random
import shutil
import sys
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import asyncpg
import hypothesis
import pytest

from support.clock import Clock
from support.cluster import DEBIAN, MIGRATED, Cluster, assert_sound, folder, in_memory, running
from support.connections import connections
from support.shapes import Connect, Scale, T

in_memory()
# If a machine forbids Python to store bytecode, each of the hundreds of processes that tests start
# would compile its imports again: half of the time that a server takes to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Databases have no fixed response times; a red CI must be repeatable.
hypothesis.settings.register_profile("dev", max_examples=30, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
hypothesis.settings.register_profile("nightly", max_examples=5_000, deadline=None)
hypothesis.settings.load_profile("dev")

FAULTS_SECONDS = 1_800
# The seed of tests in their short form: a red run must be repeatable.
SEED = 20_261_116
# xdist distributes whole files in this order. Slow files come first, or one worker would run them
# at the end while the other one is idle.
LONG_FIRST = (
    *("journeys", "browser", "package", "deploy", "docs", "faults", "upgrade", "properties"),
    *("mutation", "membership", "execution", "reporting", "maintenance", "commands", "cli"),
    *("test_fuzz.py", "test_storm.py", "circuit", "submit"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock")
    group.addoption(
        "--postgres",
        default=os.environ.get("PENSTOCK_TEST_POSTGRES"),
        help="run on this version of Debian's Postgres instead of the embedded one",
    )
    group.addoption("--faults", action="store_true", help="run storms and long forms, only")
    group.addoption(
        "--seed", type=int, help="of what is left to chance; in long forms another each time"
    )
    group.addoption("--minutes", type=float, default=30, help="length of the campaign's long form")
    group.addoption("--weather", metavar="FAULT,…", help="the campaign has these faults only")
    group.addoption("--figures", metavar="FILE", type=Path, help="write the campaign's as JSON")
    group.addoption("--write-schema", action="store_true", help="rewrite tests/contract/schema.sql")
    group.addoption("--write-surface", action="store_true", help="rewrite tests/contract/surface")
    group.addoption("--screenshots", metavar="DIR", help="keep pictures of pages in this folder")


def pytest_configure(config: pytest.Config) -> None:
    version = config.getoption("--postgres")
    if version and not Path(DEBIAN.format(version=version), "postgres").exists():
        raise pytest.UsageError(f"there is no {DEBIAN.format(version=version)}/postgres")


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("--faults") or config.getoption("--seed") is not None:
        return f"seed {_seed(config)}"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report the seed of a failed test, to repeat it."""
    report = yield
    if report.failed and "seed" in getattr(item, "fixturenames", ()):
        seed = _seed(item.config)
        path = item.nodeid.partition("[")[0]
        again = f"make faults SEED={seed} ONLY={path}"
        if not item.config.getoption("--faults"):
            again = f"pytest --seed {seed} {path}"
        report.sections.append(("seed", f"{seed}; repeat it with: {again}"))
    return report


def _seed(config: pytest.Config) -> int:
    """One for the whole run."""
    if config.getoption("--seed") is None:
        config.option.seed = random.randrange(2**32) if config.getoption("--faults") else SEED
    seed: int = config.getoption("--seed")
    return seed


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
    items[:] = sorted(keep, key=_turn)
    config.hook.pytest_deselected(items=drop)


def _turn(item: pytest.Item) -> int:
    for name in (item.path.parent.name, item.path.name):
        if name in LONG_FIRST:
            return LONG_FIRST.index(name)
    return len(LONG_FIRST)


def pytest_collection_finish() -> None:
    """Exclude loaded objects from garbage collection: traversing them took 4% of all time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The server of this run, shared by all xdist workers."""
    run = getattr(request.config, "workerinput", {}).get("testrunuid", uuid.uuid4().hex)
    home = folder(run)
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
            cluster.disconnect(name)  # sessions that a test left open would hold locks
            assert_sound(cluster.dsn(name))


@pytest.fixture
def migrated(cluster: Cluster) -> Iterator[str]:
    """The address of a fresh database without the test clock, as users have it."""
    with cluster.database(template=MIGRATED) as name:
        yield cluster.dsn(name)


@pytest.fixture
def blank(cluster: Cluster) -> Iterator[str]:
    """The address of a fresh database without Penstock's schema."""
    with cluster.database(template=None) as name:
        yield cluster.dsn(name)


@pytest.fixture
async def connect(database: str) -> AsyncIterator[Connect]:
    """A function that opens more connections to the test's database; all are closed at the end."""
    async with connections(database) as connect:
        yield connect


@pytest.fixture
async def conn(connect: Connect) -> asyncpg.Connection:
    """A connection to the test's database, as its owner."""
    return await connect()


@pytest.fixture
async def clock(connect: Connect) -> Clock:
    """The controller of `penstock.clock()` in the test's database."""
    return Clock(await connect())


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> Scale:
    """`scale(1_000, 100_000)`: the size for `make test`, or the one for `make faults`."""

    def pick(short: T, full: T) -> T:
        return full if request.config.getoption("--faults") else short

    return pick


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of random choices; the same for all tests of a run."""
    found = _seed(request.config)
    print(f"\nseed {found}")
    return found
