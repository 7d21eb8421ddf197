"""The schema that this program needs, read from its files: migrations and functions."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from penstock.db.schema.script import Script
from penstock.errors import Misconfigured

_MIGRATION = re.compile(r"(\d{4})_([a-z0-9_]+)")
# Most migrations have one up.sql; one that creates many tables has a numbered file for each noun.
_WAY = re.compile(r"(up)(?:_\d\d_[a-z0-9_]+)?\.sql|(down)\.sql")
# The order in which folders of functions are loaded, and the file that is loaded first in its
# folder; the others follow by name. The body of a function may name a function of a later file,
# because bodies are checked at the end; a view may name only objects that were loaded before it.
FOLDERS = (
    *("base", "config", "submit", "claim", "lifecycle", "circuit", "credits", "delivery"),
    *("queries", "access", "maintenance"),
)
_FIRST = "clock.sql"


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered change of the tables, up and down."""

    number: int
    name: str
    up: tuple[Script, ...]
    down: Script

    def __str__(self) -> str:
        """Return the name of its folder, like 0001_tables."""
        return f"{self.number:04}_{self.name}"

    @property
    def checksum(self) -> str:
        """The checksum of the way up, which shows whether its files were edited later."""
        return _checksum(self.up)


@dataclass(frozen=True, slots=True)
class Schema:
    """All migrations from 1 to `wanted`, and the functions that fit the last one."""

    migrations: tuple[Migration, ...]
    functions: tuple[Script, ...]

    @property
    def wanted(self) -> int:
        """The number of the last migration, which this program needs."""
        return len(self.migrations)

    @property
    def functions_checksum(self) -> str:
        """The checksum of the functions, to compare them with those in a database."""
        return _checksum(self.functions)


@cache
def packaged() -> Schema:
    """Return the schema in the package."""
    return read(files("penstock") / "sql")


def read(folder: Traversable) -> Schema:
    """Read `folder`/migrations and `folder`/functions; refuse gaps and missing down.sql files."""
    migrations = []
    named = sorted((folder / "migrations").iterdir(), key=lambda each: each.name)
    steps = [each for each in named if each.is_dir() or each.name.endswith(".sql")]
    for expected, each in enumerate(steps, start=1):
        match = _MIGRATION.fullmatch(each.name)
        if match is None or not each.is_dir():
            raise Misconfigured(f"{each.name} is not a folder named like 0001_name")
        up, down = _ways(each)
        if int(match[1]) != expected or not up or down is None:
            raise Misconfigured(
                f"migration {each.name} is out of order: {expected:04} comes next, with an up.sql"
                " and a down.sql"
            )
        migrations.append(Migration(int(match[1]), match[2], up, down))
    return Schema(tuple(migrations), tuple(_functions(folder / "functions")))


def _functions(folder: Traversable) -> Iterator[Script]:
    """Yield the files of functions in the order in which they are loaded."""
    present = {entry.name for entry in folder.iterdir()}
    if unknown := sorted(present - {*FOLDERS, "__pycache__"}):
        raise Misconfigured(
            f"sql/functions/{unknown[0]} is not loaded: its folders are {', '.join(FOLDERS)}"
        )
    for name in FOLDERS:
        if name in present:
            scripts = _scripts(folder / name)
            yield from sorted(scripts, key=lambda script: (script.name != _FIRST, script.name))


def _ways(folder: Traversable) -> tuple[tuple[Script, ...], Script | None]:
    """Return the scripts of a migration's way up, in order, and that of its way down."""
    up, down = [], None
    for script in sorted(_scripts(folder), key=lambda script: script.name):
        match = _WAY.fullmatch(script.name)
        if match is None:
            raise Misconfigured(
                f"{folder.name}/{script.name} is not named like up.sql, up_01_noun.sql or down.sql"
            )
        named = Script(f"{folder.name}/{script.name}", script.text)
        if match[1]:
            up.append(named)
        else:
            down = named
    return tuple(up), down


def _scripts(folder: Traversable) -> list[Script]:
    return [
        Script(file.name, file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]


def _checksum(scripts: Sequence[Script]) -> str:
    digest = hashlib.sha256()
    for script in scripts:
        digest.update(f"{script.name}\n{len(script.text)}\n{script.text}\n".encode())
    return digest.hexdigest()
