"""The content of the wheel, and its metadata."""

import tarfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest

from package.installing import ROOT, Built, build

LEFT_OUT = {"__pycache__", ".penstock"}


def files(folder: Path, inside: str) -> set[str]:
    return {
        str(PurePosixPath(inside, path.relative_to(folder)))
        for path in folder.rglob("*")
        if path.is_file() and not LEFT_OUT & set(path.parts)
    }


@pytest.fixture(scope="module")
def contents(built: Built) -> dict[str, bytes]:
    return read(built.wheel)


def read(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(contents: dict[str, bytes]) -> Message:
    (name,) = (name for name in contents if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(contents[name])


def test_the_wheel_holds_the_package_and_the_examples_and_nothing_else(
    contents: dict[str, bytes],
) -> None:
    expected = files(ROOT / "src" / "penstock", "penstock")
    expected |= files(ROOT / "examples", "penstock/examples")
    assert {name for name in contents if ".dist-info/" not in name} == expected


@pytest.mark.parametrize(
    "name",
    [
        "penstock/py.typed",
        "penstock/sql/functions/lifecycle/lifecycle.sql",
        "penstock/cli/demo.toml",
        "penstock/dashboard/templates/overview.html",
        "penstock/dashboard/static/penstock.js",
        "penstock/dashboard/static/vendor/htmx.min.js",
        "penstock/dashboard/static/vendor/LICENCES.txt",
        "penstock/examples/essays/pages/practice.html",
        "penstock/examples/feedback/penstock.toml",
    ],
)
def test_it_contains_a_file_of_each_sort(name: str, contents: dict[str, bytes]) -> None:
    """Sorts of files that are no Python, which a builder may leave out."""
    assert contents[name] or name.endswith("py.typed")


def test_the_source_distribution_builds_the_same_wheel(
    built: Built, contents: dict[str, bytes], tmp_path: Path
) -> None:
    with tarfile.open(built.source) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    assert not (tree / "tests").exists()
    again = build(tree, tmp_path / "again")
    assert read(again.wheel) == contents


def test_its_metadata_is_complete(metadata: Message) -> None:
    assert metadata["Name"] == "penstock"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0 AND 0BSD"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_all("Provides-Extra") == ["all", "model", "server"]
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_it_contains_its_licences(contents: dict[str, bytes], metadata: Message) -> None:
    """Penstock's licence, and those of bundled scripts."""
    named = metadata.get_all("License-File", [])
    assert len(named) == 2
    kept = {name.split("/licenses/")[1] for name in contents if "/licenses/" in name}
    assert kept == set(named)
