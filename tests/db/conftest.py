"""Homes for the embedded Postgres: a missing one, one with data, and a folder for other users."""

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
    """Data that is created once, for tests that do not test its creation."""
    home = tmp_path_factory.mktemp("cluster") / "home"
    Embedded.use(home, settings=QUICK).leave()
    return home / "postgres"


@pytest.fixture
def made(home: Path, cluster_data: Path) -> Path:
    """A home with existing data."""
    put(cluster_data, home)
    return home


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; pytest's folders are closed to other users."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    end_servers(folder)
    shutil.rmtree(folder)
