"""Documents as steps: fenced blocks in their order, and what comments say of them.

A comment stands before the block it speaks of, and no reader sees it:

    <!-- run: background NAME -->    goes on until the end of the page; its first line means "ready"
    <!-- run: background NAME; until TEXT -->    ready when it has printed TEXT
    <!-- run: exit 1 -->             ends with this code; 0 unless said
    <!-- run: with 4711=$NAME -->    4711 stands for something else here, $NAME for its process
    <!-- run by: tests/x.py -->      another test runs it; that file names this page
    <!-- not run: REASON -->         nothing here can run it
    <!-- output -->                  what the last block printed has this in it; … is anything
    <!-- output of NAME -->          and what the block in the background prints, sooner or later

Alone between blocks, or at the top:

    <!-- stop: NAME -->  <!-- kill: NAME -->   end what runs in the background; kill -9 it
    <!-- check: LANGUAGE             a block that readers do not see, to the end of the comment;
                                     behind the language, options as of `run:`
    <!-- page: embedded -->          no PENSTOCK_DSN: the page starts a database of its own
    <!-- page: two databases -->     the second one is SECOND_DSN
    <!-- page: needs php -->         skipped where this program is not installed, failed in CI

A block whose first line is a comment with a file's name is that file (`# marks.py`), and
`# at the end of marks.py` adds to it.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,}|~{3,}) *(?P<language>[\w+-]*)")
_FILE = re.compile(
    r"(?:<\?php )?(?:#|//|--|/\*|<!--|;) *(?P<added>at the end of )?(?P<name>[\w./\[\]-]+\.\w+)"
    r" *(?:\*/|-->)?"
)
_DIRECTIVE = re.compile(r"(?P<word>[a-z]+(?: [a-z]+)?):\s*(?P<rest>.*)", re.DOTALL)


class Wrong(AssertionError):  # noqa: N818  # named for what it says
    """A document says something that cannot be understood, or that is not so."""


@dataclass
class Block:
    """A fenced block, or one that is hidden in a comment."""

    line: int
    language: str
    code: str
    background: str | None = None
    until: str | None = None
    exit: int = 0
    replace: list[tuple[str, str]] = field(default_factory=list)
    run_by: str | None = None
    not_run: str | None = None
    output_of: str | None = None  # "" is the last block

    @property
    def file(self) -> re.Match[str] | None:
        return _FILE.fullmatch(self.code.partition("\n")[0].strip())


@dataclass
class Ending:
    """What runs in the background is ended here."""

    line: int
    name: str
    kill: bool


@dataclass
class Page:
    path: Path
    steps: list[Block | Ending] = field(default_factory=list)
    embedded: bool = False
    two_databases: bool = False
    needs: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else "page.md"

    @property
    def blocks(self) -> list[Block]:
        return [step for step in self.steps if isinstance(step, Block)]


def documents() -> list[Path]:
    """Every page of the documentation, and the README."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read_page(path: Path) -> Page:
    """The steps of a document. Raises Wrong with the line of what cannot be understood."""
    page = Page(path)
    waiting: Block | None = None  # what a comment said of the next block
    for line, kind, text in _pieces(path.read_text(encoding="utf-8")):
        if kind == "comment":
            spoken = _comment(page, line, text)
            if spoken is not None and waiting is not None:
                raise Wrong(f"{page.name}:{line}: two comments about one block")
            waiting = spoken or waiting
        elif kind == "prose":
            if waiting is not None:
                raise Wrong(f"{page.name}:{waiting.line}: no block follows the comment")
        else:
            block = waiting or Block(line, "", "")
            block.line, block.language, block.code = line, kind, text
            page.steps.append(block)
            waiting = None
    if waiting is not None:
        raise Wrong(f"{page.name}:{waiting.line}: no block follows the comment")
    return page


def _pieces(document: str) -> Iterator[tuple[int, str, str]]:
    """Line, kind and content: `comment`, `prose`, or the language of a block ("" is none)."""
    lines = document.splitlines()
    at = 0
    while at < len(lines):
        start = at
        fence = _FENCE.match(lines[at])
        if fence:
            while lines[at + 1].strip() != fence["ticks"]:
                at += 1
            code = textwrap.dedent("\n".join(lines[start + 1 : at + 1])) + "\n"
            yield start + 1, fence["language"], code
            at += 1
        elif lines[at].lstrip().startswith("<!--"):
            while "-->" not in lines[at]:
                at += 1
            whole = textwrap.dedent("\n".join(lines[start : at + 1]))
            yield start + 1, "comment", whole.strip().removeprefix("<!--").partition("-->")[0]
        elif lines[at].strip():
            yield start + 1, "prose", lines[at]
        at += 1


def _comment(page: Page, line: int, text: str) -> Block | None:
    """What a comment says of the block behind it; a step of its own is added to the page."""
    text = text.strip()
    if text == "output" or text.startswith("output of "):
        return Block(line, "", "", output_of=text.removeprefix("output").removeprefix(" of "))
    said = _DIRECTIVE.fullmatch(text)
    if said is None:
        return None  # somebody's note
    rest = said["rest"].strip()
    match said["word"]:
        case "run":
            return _options(page, line, rest)
        case "run by":
            return Block(line, "", "", run_by=rest)
        case "not run":
            return Block(line, "", "", not_run=rest)
        case "stop" | "kill" as how:
            page.steps.append(Ending(line, rest, kill=how == "kill"))
        case "check":
            first, _, code = said["rest"].partition("\n")
            language, _, options = first.strip().partition(" ")
            block = _options(page, line, options) if options else Block(line, "", "")
            block.language, block.code = language, code + "\n"
            page.steps.append(block)
        case "page":
            _page(page, line, rest)
        case _:
            raise Wrong(f"{page.name}:{line}: the comment is not understood: {text}")
    return None


def _page(page: Page, line: int, said: str) -> None:
    if said == "embedded":
        page.embedded = True
    elif said == "two databases":
        page.two_databases = True
    elif said.startswith("needs "):
        page.needs += said.removeprefix("needs ").split()
    else:
        raise Wrong(f"{page.name}:{line}: the comment is not understood: {said}")


def _options(page: Page, line: int, written: str) -> Block:
    block = Block(line, "", "")
    for one in written.split(";"):
        word, _, rest = one.strip().partition(" ")
        match word:
            case "background" if rest:
                block.background = rest
            case "until" if rest:
                block.until = rest
            case "exit" if rest.isdecimal():
                block.exit = int(rest)
            case "with" if "=" in rest:
                old, _, new = rest.partition("=")
                block.replace.append((old, new))
            case _:
                raise Wrong(f"{page.name}:{line}: the comment is not understood: {one.strip()}")
    return block
