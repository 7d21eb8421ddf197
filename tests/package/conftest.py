"""One build and two installations for all tests of the package."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from package.installing import ROOT, Built, Installed, build, install

# On a disk, unlike other temporary files: uv links packages there and does not copy them.
DISK = "/var/tmp"  # noqa: S108  # a folder in it is made for its owner alone


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(ROOT, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="session")
def whole(built: Built) -> Iterator[Installed]:
    """`pip install 'penstock[all]'`"""
    with tempfile.TemporaryDirectory(dir=DISK) as home:
        yield install(built.wheel, "all", Path(home, "venv"))


@pytest.fixture(scope="session")
def bare(built: Built) -> Iterator[Installed]:
    """`pip install penstock`"""
    with tempfile.TemporaryDirectory(dir=DISK) as home:
        yield install(built.wheel, "", Path(home, "venv"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder, in which a user begins."""
    empty = tmp_path / "empty"
    empty.mkdir()
    return empty
