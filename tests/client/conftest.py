"""An app on the test's database, without PENSTOCK_ variables from the environment."""

import os
from collections.abc import AsyncIterator

import pytest

from penstock import Penstock
from support.engine_fixtures import engine  # noqa: F401  # a fixture


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PENSTOCK_") and not name.startswith("PENSTOCK_TEST"):
            monkeypatch.delenv(name)


@pytest.fixture
async def app(database: str) -> AsyncIterator[Penstock]:
    app = Penstock(database, name="tests")
    yield app
    await app.close()
