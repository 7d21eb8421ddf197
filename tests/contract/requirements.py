"""Generate docs/requirements.md from requirements.toml and the docstrings of the tests.

    python tests/contract/requirements.py        writes the page anew

The behaviours, words and differences are in requirements.toml. Which tests there are, and which
ids they name in their docstrings, is read from their source: nothing is run or imported.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "requirements.md"
DATA = Path(__file__).with_name("requirements.toml")

# Marks of tests that `make test` leaves out, always or on some machines.
SET_ASIDE = {"faults", "skip", "skipif", "xfail"}

# Not inside of a word, and not R-S19 either: those are faults of the source documents.
ID = re.compile(r"(?<![\w-])[MESFGD]\d{1,2}(?!\w)")

_HEAD = """\
<!-- Made by tests/contract/requirements.py from requirements.toml beside it and from the tests.
     Edit those, and run `python tests/contract/requirements.py`. -->

# Requirements and their tests

Five systems were described before Penstock was written: marking a whole class, essays, scanning,
feedback from one local model, and images for credits. The letters M to G are the behaviours that
these descriptions name. D is what they omit: nobody waits or pays because of somebody else. Each
line names the tests to open first, and how many further tests name its id in their docstring.
`make test` runs them all, and fails if a behaviour has no test. Tests that are left out, always or
on some machines, do not count.
"""

_WORDS = """\
## Terms of the descriptions and of Penstock

The five descriptions use different names for the same things. Values in one row correspond in
order.
"""

_DIFFERENT = """\
## Differences, and why

If a description as written would lose work, money or secrets, the id stands for the intended
behaviour, which Penstock implements as follows.
"""


@dataclass(frozen=True, slots=True)
class Behaviour:
    id: str
    says: str
    proof: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Requirements:
    systems: Mapping[str, str]
    behaviours: Mapping[str, Behaviour]
    words: tuple[Mapping[str, str], ...]
    different: tuple[Mapping[str, str], ...]


def read(text: str) -> Requirements:
    """What requirements.toml says."""
    found: dict[str, Any] = tomllib.loads(text)
    words, different = found.pop("words"), found.pop("different")
    systems = found.pop("systems")
    return Requirements(
        systems,
        {name: Behaviour(name, said["says"], tuple(said["proof"])) for name, said in found.items()},
        tuple(words),
        tuple(different),
    )


def claims(tests: Path) -> dict[str, tuple[str, ...]]:
    """Every test as `path::name`, with the ids that it names; none that may be left out."""
    return {
        f"{path.relative_to(tests.parent).as_posix()}::{name}": ids
        for path in sorted(tests.rglob("*.py"))
        for name, ids in _claims_in(ast.parse(path.read_text()))
    }


def _claims_in(scope: ast.Module | ast.ClassDef) -> Iterator[tuple[str, tuple[str, ...]]]:
    if _is_set_aside(_marks_of_all(scope)):
        return
    for node in scope.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name.startswith("test") and not _is_set_aside(node.decorator_list):
                    yield name, tuple(ID.findall(ast.get_docstring(node) or ""))
            case ast.ClassDef() if not _is_set_aside(node.decorator_list):
                yield from _claims_in(node)


def _marks_of_all(scope: ast.Module | ast.ClassDef) -> list[ast.expr]:
    """What `pytestmark` says: one mark, or a list of them."""
    found: list[ast.expr] = []
    for node in scope.body:
        match node:
            case ast.Assign(targets=[ast.Name("pytestmark")], value=value):
                found += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    return found


def _is_set_aside(marks: Iterable[ast.expr]) -> bool:
    """By `pytest.mark.faults`, say; also where it is called."""
    called = (mark.func if isinstance(mark, ast.Call) else mark for mark in marks)
    return any(isinstance(mark, ast.Attribute) and mark.attr in SET_ASIDE for mark in called)


def page(asked: Requirements, claimed: Mapping[str, tuple[str, ...]]) -> str:
    """The whole of docs/requirements.md."""
    parts = [_HEAD]
    for letter, title in asked.systems.items():
        rows = [
            f"| {one.id} | {_cell(one.says)} | {_tests(one, claimed)} |"
            for one in asked.behaviours.values()
            if one.id.startswith(letter)
        ]
        table = ["| id | behaviour | proved by |", "|---|---|---|", *rows]
        parts.append("\n".join([f"## {letter}: {title.lower()}", "", *table, ""]))
    table = ["| in the descriptions | in Penstock |", "|---|---|"]
    table += [f"| {_cell(row['theirs'])} | {_cell(row['ours'])} |" for row in asked.words]
    parts.append("\n".join([_WORDS, *table, ""]))
    parts.append(_DIFFERENT)
    for letter, title in asked.systems.items():
        table = ["| the description | Penstock | why |", "|---|---|---|"]
        table += [
            f"| {_cell(row['theirs'])} | {_cell(row['ours'])} | {_cell(row['why'])} |"
            for row in asked.different
            if row["of"] == letter
        ]
        parts.append("\n".join([f"### {title}", "", *table, ""]))
    return "\n".join(parts)


def _tests(one: Behaviour, claimed: Mapping[str, tuple[str, ...]]) -> str:
    named = [f"`{test.removeprefix('tests/')}`" for test in one.proof]
    more = sum(one.id in ids for test, ids in claimed.items() if test not in one.proof)
    return "<br>".join([*named, *([f"and {more} more"] if more else [])])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    PAGE.write_text(page(read(DATA.read_text()), claims(ROOT / "tests")))


if __name__ == "__main__":
    main()
