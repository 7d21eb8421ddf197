"""Example apps as running programs, each on a database of its own."""

import sys
from collections.abc import AsyncIterator, Iterator

import asyncpg
import psycopg
import pytest

from browser.watched import Windows, open_windows
from journeys.essays_site import Essays, Person, browser
from journeys.processes import EXAMPLES, close_up
from support.clock import Clock
from support.cluster import Cluster, assert_sound


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As `penstock dev` finds them; nobody else is to find them afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in set(sys.modules) - before:
        if str(EXAMPLES) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def shared_database(cluster: Cluster) -> Iterator[str]:
    """The address of a database for a module's tests together; afterwards its invariants hold."""
    with cluster.database() as name:
        yield cluster.dsn(name)
        cluster.disconnect(name)
        assert_sound(cluster.dsn(name))


@pytest.fixture(autouse=True)
def _sound_after_each(request: pytest.FixtureRequest) -> Iterator[None]:
    """What breaks an invariant is named by the test that broke it, not by the module's last."""
    yield
    if "shared_database" in request.fixturenames:
        with psycopg.connect(request.getfixturevalue("shared_database")) as conn:
            assert conn.execute("select * from penstock.check()").fetchall() == []


@pytest.fixture
async def shared_conn(shared_database: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(shared_database)
    yield conn
    conn.terminate()


@pytest.fixture
async def shared_clock(shared_database: str) -> AsyncIterator[Clock]:
    """What is moved on stays so for the module's later tests; no harm in that."""
    conn = await asyncpg.connect(shared_database)
    yield Clock(conn)
    conn.terminate()


@pytest.fixture(scope="module")
def shop_window(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Essays]:
    """The web app alone, shared by tests that want no job to run; each brings its own people."""
    site = Essays(shared_database, tmp_path_factory.mktemp("essays"))
    try:
        site.start_web().wait_ready()
        yield site
    finally:
        site.end()


@pytest.fixture
def essays(shop_window: Essays) -> Iterator[Essays]:
    """The same web app, a model that is well, and a worker when the test starts one."""
    usual = dict(shop_window.env)
    shop_window.settle()
    yield shop_window
    shop_window.env = usual
    close_up(usual["PENSTOCK_DSN"], shop_window.programs)


@pytest.fixture
async def ana(request: pytest.FixtureRequest, shop_window: Essays) -> AsyncIterator[Person]:
    """Somebody who has signed in, under a name of this test's own."""
    async with browser(shop_window) as person:
        await person.sign_in(f"Ana {request.node.name[:40]}")
        yield person


@pytest.fixture
def allowed_errors() -> list[str]:
    """Append what the test provokes in its pages: parts of messages, as regular expressions."""
    return []


@pytest.fixture
async def windows(
    request: pytest.FixtureRequest, allowed_errors: list[str]
) -> AsyncIterator[Windows]:
    """A real browser: `await windows.open(phone=True, dark=True)`; see tests/browser."""
    async with open_windows(allowed_errors, request.config.getoption("--screenshots")) as opened:
        yield opened
