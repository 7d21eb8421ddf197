"""The schema this program wants, as its files say it: migrations, and replaceable functions."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from penstock.db.script import Script
from penstock.errors import Misconfigured

_MIGRATION = re.compile(r"(\d{4})_([a-z0-9_]+)\.(up|down)\.sql")
# Then by the alphabet. A function's body may name what comes later, since bodies are checked when
# all are there; a view may not.
_FIRST = "clock.sql"


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of the tables, up and down."""

    number: int
    name: str
    up: Script
    down: Script

    def __str__(self) -> str:
        """As its files are called: 0001_engine."""
        return f"{self.number:04}_{self.name}"

    @property
    def checksum(self) -> str:
        """Of the way up: what was applied is told from what the file says now."""
        return _checksum([self.up])


@dataclass(frozen=True, slots=True)
class Schema:
    """Every migration from 1 to `wanted`, and the functions that go with the last."""

    migrations: tuple[Migration, ...]
    functions: tuple[Script, ...]

    @property
    def wanted(self) -> int:
        """The number a database must have for this program to work on it."""
        return len(self.migrations)

    @property
    def functions_checksum(self) -> str:
        """Tells whether the functions in a database are these."""
        return _checksum(self.functions)


@cache
def packaged() -> Schema:
    """The schema that travels inside the package."""
    return read(files("penstock") / "sql")


def read(folder: Traversable) -> Schema:
    """Read `folder`/migrations and `folder`/functions, and refuse gaps and one-way steps."""
    ways: dict[tuple[int, str], dict[str, Script]] = {}
    for script in _scripts(folder / "migrations"):
        match = _MIGRATION.fullmatch(script.name)
        if match is None:
            raise Misconfigured(
                f"{script.name} is not named like 0001_name.up.sql or 0001_name.down.sql"
            )
        ways.setdefault((int(match[1]), match[2]), {})[match[3]] = script
    migrations = []
    for expected, ((number, name), way) in enumerate(sorted(ways.items()), start=1):
        if number != expected or way.keys() != {"up", "down"}:
            raise Misconfigured(
                f"migration {number:04}_{name} breaks the row: {expected:04} needs an up and a down"
            )
        migrations.append(Migration(number, name, way["up"], way["down"]))
    functions = sorted(
        _scripts(folder / "functions"),
        key=lambda script: (script.name != _FIRST, script.name),
    )
    return Schema(tuple(migrations), tuple(functions))


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
