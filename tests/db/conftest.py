"""Homes for the embedded Postgres: none yet, one with data, and a place for other users'.

And a blank database for the migration runner, with schemas for it.
"""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from penstock.db.embedded.database import Embedded
from support.connections import connections
from support.db.embedded_uses import QUICK, end_servers, put
from support.db.small_schemas import Folder
from support.engine_fixtures import engine, stranger  # noqa: F401  # fixtures
from support.shapes import Connect


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    end_servers(tmp_path)


@pytest.fixture(scope="session")
def cluster_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data made once, for tests that are not about making it."""
    home = tmp_path_factory.mktemp("cluster") / "home"
    Embedded.use(home, settings=QUICK).leave()
    return home / "postgres"


@pytest.fixture
def made(home: Path, cluster_data: Path) -> Path:
    """A home whose data is there already."""
    put(cluster_data, home)
    return home


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder every user can walk to; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    end_servers(folder)
    shutil.rmtree(folder)


@pytest.fixture
async def another(blank: str) -> AsyncIterator[Connect]:
    """A way to open connections to the blank database; all are closed at the end."""
    async with connections(blank) as connect:
        yield connect


@pytest.fixture
async def conn(another: Connect) -> asyncpg.Connection:
    return await another()


@pytest.fixture
def schema(tmp_path: Path) -> Folder:
    return Folder(tmp_path)
