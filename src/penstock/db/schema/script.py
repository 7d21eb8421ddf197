"""Run an SQL file statement by statement, so that an error names its file and line.

Postgres reports a position only for errors that it finds while parsing. "Already exists" and
"violates constraint" come without one; then only the running statement shows the line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import asyncpg

from penstock.errors import MigrationFailed

# Tokens that may contain a semicolon that ends no statement: comments, strings, names and
# dollar-quoted bodies. Not supported: nested block comments, and bodies of BEGIN ATOMIC (which bind
# names early and make functions depend on tables). Such a file is split wrongly and fails to load.
_TOKEN = re.compile(
    r"""
      --[^\n]*
    | /\*.*?\*/
    | \b[eE]'(?:[^'\\]|\\.|'')*'
    | '(?:[^']|'')*'
    | "[^"]*"
    | (?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?P=tag)
    | (?P<end>;)
    """,
    re.DOTALL | re.VERBOSE,
)
_BLANK = re.compile(r"(?:\s+|--[^\n]*|/\*.*?\*/)*", re.DOTALL)


class Statement(NamedTuple):
    """One statement, and the line of the file on which it begins."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Script:
    """An SQL file: its name for messages, and its text."""

    name: str
    text: str

    def statements(self) -> Iterator[Statement]:
        """Yield the statements in order, each without the comments in front of it."""
        start = 0
        ends = [token.end() for token in _TOKEN.finditer(self.text) if token["end"]]
        for end in [*ends, len(self.text)]:
            begin = _blank_end(self.text, start)
            if begin < end:
                yield Statement(self.text[begin:end], self.text.count("\n", 0, begin) + 1)
            start = end

    async def run(self, conn: asyncpg.Connection) -> None:
        """Run every statement; the caller holds the transaction."""
        for statement in self.statements():
            await self.run_statement(conn, statement)

    async def run_statement(self, conn: asyncpg.Connection, statement: Statement) -> None:
        """Run one of its statements."""
        try:
            await conn.execute(statement.text)
        except asyncpg.PostgresError as error:
            raise self.failure(statement, error) from error

    def failure(self, statement: Statement, error: asyncpg.PostgresError) -> MigrationFailed:
        """Return the error with file and line for an error of Postgres in this statement."""
        line = statement.line
        if error.position:
            line += statement.text.count("\n", 0, int(error.position) - 1)
        return MigrationFailed(f"{self.name}, line {line}: {explained(error)}")


def _blank_end(text: str, start: int) -> int:
    blank = _BLANK.match(text, start)
    return blank.end() if blank else start


def explained(error: asyncpg.PostgresError) -> str:
    """Return Postgres's message with detail and hint, or a better hint for known errors."""
    sentences = [error.message, error.detail, error.hint]
    match error:
        case asyncpg.DependentObjectsStillExistError():
            # Its hint is CASCADE, which would drop a user's own objects.
            sentences[2] = "The dependent objects are not Penstock's: move or drop them, and retry."
        case asyncpg.LockNotAvailableError():
            sentences.append("A long transaction holds the lock; end it and try again.")
        case asyncpg.InsufficientPrivilegeError():
            sentences.append("Migrate as the owner of the database or of the schema penstock.")
    return " ".join(_sentence(part) for part in sentences if part)


def _sentence(part: str) -> str:
    return part if part.endswith((".", "!", "?")) else f"{part}."
