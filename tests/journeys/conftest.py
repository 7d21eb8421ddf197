"""Example apps as running programs, each on a database of its own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from browser.watched import Windows
from cluster import Cluster
from journeys.browser import CHROMIUM, open_windows
from journeys.essays_site import Essays, Person, browser


@pytest.fixture
def essays(database: str, tmp_path: Path) -> Iterator[Essays]:
    """Web app and model, running; a worker when the test starts one."""
    site = Essays(database, tmp_path)
    try:
        # Side by side: most of a start is Python reading files.
        for program in (site.start_web(), site.start_model()):
            program.wait_ready()
        yield site
    finally:
        site.end()


@pytest.fixture(scope="module")
def shop_window(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Essays]:
    """The web app alone, shared by tests that want no job to run; each brings its own people."""
    with cluster.database() as name:
        site = Essays(cluster.dsn(name), tmp_path_factory.mktemp("essays"))
        try:
            site.start_web().wait_ready()
            yield site
        finally:
            site.end()
        with psycopg.connect(cluster.dsn(name)) as conn:
            assert conn.execute("select * from penstock.check()").fetchall() == []


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Essays:
    """The test's own app if it asks for one, else the shared one.

    Not looked for in `ana` itself: databases are made outside of any event loop.
    """
    wanted = "essays" if "essays" in request.fixturenames else "shop_window"
    found: Essays = request.getfixturevalue(wanted)
    return found


@pytest.fixture
async def ana(request: pytest.FixtureRequest, site: Essays) -> AsyncIterator[Person]:
    """Somebody who has signed in, under a name of this test's own."""
    async with browser(site.web_port) as person:
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
    if CHROMIUM is None:
        pytest.skip("there is no chromium here")
    folder = request.config.getoption("--screenshots")
    async with open_windows(allowed_errors, Path(folder) if folder else None) as opened:
        yield opened
