"""The limits of the source tree: a folder is taken in at a glance, and says what it holds."""

import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

import penstock

SRC = Path(penstock.__file__).parent
SQL = SRC / "sql"
MOST_ENTRIES = 18

CELL = re.compile(r"^\| ((?:\*\*.*?\*\* )?`.*?) \|", re.MULTILINE)


def source_files() -> list[Path]:
    """What git tracks, or would: nothing that a program has written."""
    asked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(asked, cwd=SRC, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := SRC / name).exists()]


def packages() -> list[Path]:
    folders = {folder for path in source_files() if path.suffix == ".py" for folder in path.parents}
    return sorted(folder for folder in folders if folder.is_relative_to(SRC))


def names(path: Path) -> str:
    return path.relative_to(SRC.parent).as_posix()


every_package = pytest.mark.parametrize("package", packages(), ids=names)


def test_no_folder_has_more_entries_than_can_be_seen_at_a_glance() -> None:
    entries: dict[str, set[str]] = defaultdict(set)
    for path in source_files():
        parts = path.relative_to(SRC.parent).parts
        for depth in range(1, len(parts)):
            entries["/".join(parts[:depth])].add(parts[depth])
    assert len(entries["penstock"]) > 1
    crowded = {name: len(held) for name, held in entries.items() if len(held) > MOST_ENTRIES}
    assert crowded == {}


@every_package
def test_a_package_says_in_one_sentence_what_it_holds(package: Path) -> None:
    sentence = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    assert re.fullmatch(r"[A-Z](?:[^.\n]|\.(?=\w))+\.", sentence), sentence


@every_package
def test_a_package_imports_nothing(package: Path) -> None:
    """A command that only reads would load all that lies beside what it needs.

    The top one holds the public names, and imports each when it is asked for (test_surface.py).
    """
    if package != SRC:
        docstring, *statements = ast.parse((package / "__init__.py").read_text()).body
        assert isinstance(docstring, ast.Expr)
        assert statements == []


def test_the_map_of_the_core_lists_each_file_once() -> None:
    """In a cell, a name without a folder lies beside the one before it."""
    cells = CELL.findall((SQL / "README.md").read_text())
    listed = sorted(path for cell in cells for path in paths(cell))
    there = sorted(
        path.relative_to(SQL).as_posix()
        for path in source_files()
        if path.suffix == ".sql" and path.is_relative_to(SQL) and "migrations" not in path.parts
    )
    assert listed == there


def paths(cell: str) -> list[str]:
    found: list[str] = []
    for name in re.findall(r"`([^`]+\.sql)`", cell):
        folder = Path(found[-1]).parent if found and "/" not in name else Path()
        found.append((folder / name).as_posix())
    return [name for name in found if "migrations" not in name]
