"""How a page of the reference is written: tables and links in Markdown, and what is missing."""

import inspect
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

WRITTEN = "<!-- Written by `make docs` from the code and docs/_generate: change those. -->"

_OPTION = re.compile(r"([a-z_]+(?:, [a-z_]+)*) {2,}(\S.*)")


def read_words(name: str) -> dict[str, Any]:
    """What is said on a page beside what the code says: sentences, by what they are about."""
    path = Path(__file__).parent / "words" / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


class Undocumented(Exception):  # noqa: N818  # named for what it says
    """Something has no description, or a description is of nothing."""

    def __init__(self, what: str, missing: Iterable[object], left: Iterable[object] = ()) -> None:
        said = [f"{what} without a description: {', '.join(map(str, missing))}"] if missing else []
        if left:
            said.append(f"descriptions of no {what}: {', '.join(map(str, left))}")
        super().__init__("; ".join(said))


def described(what: str, found: Iterable[str], words: Mapping[str, Any]) -> None:
    """Every one that was found has its words, and no words are left over."""
    names = set(found)
    missing = sorted(names - {name for name, said in words.items() if said})
    left = sorted(set(words) - names)
    if missing or left:
        raise Undocumented(what, missing, left)


def page(title: str, *parts: str) -> str:
    """The whole of it."""
    return (
        "\n\n".join([f"# {title}", WRITTEN, *(part.strip("\n") for part in parts if part)]) + "\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Nothing at all where there are no rows."""
    lines = [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").strip()


def code(text: object) -> str:
    return f"`{text}`"


def codes(names: Iterable[object]) -> str:
    return ", ".join(code(name) for name in names)


def sentence(text: str) -> str:
    """With a capital and a full stop, as a line of its own."""
    text = " ".join(text.split())
    if text.partition(" ")[0].rstrip(",;").isalpha() and not text.startswith("csv"):
        text = text[:1].upper() + text[1:]  # not of module:app
    return text if not text or text[-1] in ".!?:" else f"{text}."


def columns_of(docstring: str) -> dict[str, str]:
    """What a docstring says of options in two columns, by option."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in inspect.cleandoc(docstring).splitlines():
        if match := _OPTION.fullmatch(line):
            names = match[1].split(", ")
            found |= dict.fromkeys(names, match[2])
        elif names and line.startswith("  "):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found


def slug(heading: str) -> str:
    """The anchor of a heading, the same on the site and where the file is read as it is."""
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in "_- ")
    return kept.strip().replace(" ", "-")
