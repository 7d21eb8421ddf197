"""Homes for the embedded Postgres: none yet, one with data, and a place for other users'."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.db.embedded.database import Embedded
from support.db.embedded_uses import QUICK, end_servers, put
from support.engine_fixtures import engine, stranger  # noqa: F401  # fixtures


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
