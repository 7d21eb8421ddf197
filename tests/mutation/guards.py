"""Guards: conditions in the SQL that protect something, found by the comment beside them.

A mutant is a function without one of its guards. Most lines say by themselves what is left:

    and j.attempt = t.attempt -- guard: fence                    the line is removed
    where j.attempt = t.attempt -- guard: fence                  where true
    and not exists ( -- guard: once                              removed up to its last bracket
    perform penstock._lock(v_id); -- guard: locked               the statement is removed

Where that would not be SQL, or would change something else, the scenario that catches the guard
says which words of the line become which: REPLACEMENTS.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import penstock
from penstock.db.schema.script import Script

FUNCTIONS = Path(penstock.__file__).parent / "sql" / "functions"

_MARK = re.compile(r" -- guard: (?P<name>[a-z,' ]+)$")
_FUNCTION = re.compile(r"create or replace (?:function|procedure) penstock\.(\w+)")
_QUIET = re.compile(r"'(?:[^']|'')*'|--.*")
# What stands in place of a condition that begins so.
_INSTEAD = {"and": "", "or": "", "where": "where true", "when": "when true"}

REPLACEMENTS: dict[str, tuple[str, str]] = {}
"""By "function: name": words of the guard's line, and what a mutant has in their place."""


@dataclass(frozen=True)
class Guard:
    function: str
    name: str
    file: str
    line: int
    """Within the statement that makes the function."""

    def __str__(self) -> str:
        return f"{self.function}: {self.name}"


@dataclass(frozen=True)
class Edit:
    """A change by hand, where what stands before a guard has no marker of its own."""

    function: str
    old: str
    new: str


@cache
def sources() -> dict[str, tuple[str, str]]:
    """The file and the text of every function."""
    found = {}
    for path in sorted(FUNCTIONS.rglob("*.sql")):
        for statement in Script(path.name, path.read_text(encoding="utf-8")).statements():
            if made := _FUNCTION.match(statement.text):
                found[made[1]] = (path.name, statement.text)
    return found


@cache
def guards() -> dict[str, Guard]:
    """Every guard of the SQL, by "function: name"."""
    found: dict[str, Guard] = {}
    for function, (file, text) in sources().items():
        for number, line in enumerate(text.splitlines()):
            if mark := _MARK.search(line):
                guard = Guard(function, mark["name"], file, number)
                assert str(guard) not in found, (
                    f"two guards of {function} are called {mark['name']}"
                )
                found[str(guard)] = guard
    return found


def marks() -> int:
    """How many lines bear the word, wherever they stand."""
    return sum(
        path.read_text(encoding="utf-8").count("guard:") for path in FUNCTIONS.rglob("*.sql")
    )


def mutants(changes: Iterable[str | Edit]) -> dict[str, str]:
    """The functions concerned, without these guards and with these edits."""
    texts: dict[str, list[str]] = {}
    for change in changes:
        function = change.function if isinstance(change, Edit) else guards()[change].function
        lines = texts.setdefault(function, sources()[function][1].splitlines())
        if isinstance(change, Edit):
            text = "\n".join(lines)
            assert text.count(change.old) == 1, f"{function} says {change.old!r} not once"
            # Lines stay where they are, for the guards that are to go too.
            new = change.new + "\n" * (change.old.count("\n") - change.new.count("\n"))
            texts[function] = text.replace(change.old, new).splitlines()
        else:
            _drop(lines, guards()[change])
    return {function: "\n".join(lines) for function, lines in texts.items()}


def _drop(lines: list[str], guard: Guard) -> None:
    """Take the guard out, and leave the number of lines as it is."""
    at = guard.line
    if str(guard) in REPLACEMENTS:
        old, new = REPLACEMENTS[str(guard)]
        code = _MARK.sub("", lines[at])
        assert code.count(old) == 1, f"{guard} is to replace {old!r}, but its line is {code!r}"
        lines[at] = code.replace(old, new)
        return
    first = lines[at].split()[0]
    is_condition = first in _INSTEAD
    end = at
    while _open(lines[at : end + 1]) > 0 or not (is_condition or _code(lines[end]).endswith(";")):
        end += 1
    # Brackets and semicolons that close what was opened before the condition stay.
    surplus = ")" * -_open(lines[at : end + 1])
    if is_condition and _code(lines[end]).endswith(";"):
        surplus += ";"
    lines[at] = (_INSTEAD[first] if is_condition else "null;") + surplus
    lines[at + 1 : end + 1] = [""] * (end - at)


def _code(line: str) -> str:
    return _QUIET.sub("", line).rstrip()


def _open(lines: list[str]) -> int:
    """How many brackets are opened here and not closed; negative: closed and not opened."""
    code = "".join(map(_code, lines))
    return code.count("(") - code.count(")")
