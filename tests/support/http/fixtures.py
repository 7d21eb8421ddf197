"""`site`: the API of an app on the test's database, with clients for every kind of key."""

import os
from collections.abc import AsyncIterator

import pytest

from penstock import Penstock
from penstock.engine.engine import Engine
from support.clock import Clock
from support.http.site import SECRET, Site


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the person who runs the tests, and the secret that all tests use."""
    for name in list(os.environ):
        if name.startswith("PENSTOCK_") and not name.startswith("PENSTOCK_TEST"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PENSTOCK_SECRET", SECRET)


@pytest.fixture
async def site(database: str, clock: Clock) -> AsyncIterator[Site]:
    async with await Engine.open(database, max_connections=4) as engine:
        site = Site(database, Penstock(database, name="tests"), engine, clock)
        await site.open()
        yield site
        await site.close()
