"""Every sentence of the repository that people read, and a random sample of them.

python tests/docs/sentences.py [SEED]     print 60 sentences of each category, with file and line

Categories: comments and docstrings of Python, SQL, JavaScript and CSS; documents; messages (string
literals with several words: errors, hints, log lines, help texts); pages (templates, texts of
scripts). A seed draws the same sample as long as the text is the same.
"""

import ast
import html
import io
import random
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PER_CATEGORY = 60
FEWEST_WORDS = 4

_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`\"'])")
_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_HTML_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_JINJA = re.compile(r"{#.*?#}|{%.*?%}|{{.*?}}", re.DOTALL)
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SQL_TEXT = re.compile(r"(?<![\w'])'((?:[^'\n]|'')+)'")
_SQL_COMMENT = re.compile(r"(?:^[ \t]*--[^\n]*\n)+", re.MULTILINE)
_JS_COMMENT = re.compile(r"(?:^[ \t]*//[^\n]*\n)+|/\*.*?\*/", re.MULTILINE | re.DOTALL)
_JS_SIGN = re.compile(r"^[ \t]*(//|/?\*+/?)|\*/", re.MULTILINE)
_JS_TEXT = re.compile(r"\"((?:[^\"\\\n]|\\.)*)\"|`([^`\n]*)`")
# What ruff and mypy read, and a rule drawn across a file.
_DIRECTIVE = re.compile(r"#?\s*(noqa|type:|mypy:|fmt:|pragma|!/|-{3,}|guard:)")
# Code, SQL and paths in quotes are no prose.
_NO_PROSE = re.compile(
    r"^(select|insert|update|delete|with|call|set|alter|create|drop|cast|grant|from|where)\b"
    r"|[{}<>=|]{2}|::|\$\d|\bpenstock\.\w+\(|^[\w./:-]+$",
    re.IGNORECASE,
)


class Sentence(NamedTuple):
    category: str
    file: str
    line: int
    text: str


def all_sentences() -> Iterator[Sentence]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in sorted(listed.stdout.splitlines()):
        path = ROOT / name
        reader = _READERS.get(path.suffix)
        if reader is None or "/vendor/" in name or "/assets/" in name or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        for category, line, piece in reader(text):
            for sentence in _split(piece):
                yield Sentence(category, name, line, sentence)


def sample(seed: int) -> list[Sentence]:
    by_category: dict[str, list[Sentence]] = {}
    for sentence in all_sentences():
        by_category.setdefault(sentence.category, []).append(sentence)
    choice = random.Random(seed)  # a sample, not a secret
    return [
        sentence
        for category in sorted(by_category)
        for sentence in choice.sample(by_category[category], PER_CATEGORY)
    ]


def _split(text: str) -> Iterator[str]:
    for sentence in _SENTENCE_END.split(" ".join(text.split())):
        if len(re.findall(r"[A-Za-z]{2,}", sentence)) >= FEWEST_WORDS:
            yield sentence


def _python(text: str) -> Iterator[tuple[str, int, str]]:
    tree = ast.parse(text)
    docstrings = set()
    for node in ast.walk(tree):
        # Also the texts below attributes, which documentation tools read like docstrings.
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            docstrings.add(id(node.value))
            for paragraph in node.value.value.split("\n\n"):
                yield "docstring", node.lineno, paragraph
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = [
                str(value.value) if isinstance(value, ast.Constant) else "X"
                for value in node.values
            ]
            docstrings.update(id(value) for value in node.values)
            yield from _message("".join(pieces), node.lineno)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            yield from _message(node.value, node.lineno)
    yield from _python_comments(text)


def _python_comments(text: str) -> Iterator[tuple[str, int, str]]:
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        row = token.start[0]
        if block and row != last + 1:
            yield "comment", first, " ".join(block)
            block = []
        first = row if not block else first
        last = row
        block.append(token.string.lstrip("#: "))
    if block:
        yield "comment", first, " ".join(block)


def _message(text: str, line: int) -> Iterator[tuple[str, int, str]]:
    if " " in text.strip() and not _NO_PROSE.search(text.strip()):
        yield "message", line, text


def _blocks(
    pattern: re.Pattern[str], text: str, clean: Callable[[str], str]
) -> Iterator[tuple[str, int, str]]:
    for match in pattern.finditer(text):
        for paragraph in clean(match[0]).split("\n\n"):
            if not _DIRECTIVE.match(paragraph.strip()):
                yield "comment", text.count("\n", 0, match.start()) + 1, paragraph


def _sql(text: str) -> Iterator[tuple[str, int, str]]:
    yield from _blocks(
        _SQL_COMMENT, text, lambda block: re.sub(r"^[ \t]*--[ ]?", "", block, flags=re.MULTILINE)
    )
    code = re.sub(r"--[^\n]*", "", text)
    for match in _SQL_TEXT.finditer(code):
        yield from _message(match[1].replace("''", "'"), code.count("\n", 0, match.start()) + 1)


def _script(text: str) -> Iterator[tuple[str, int, str]]:
    yield from _blocks(_JS_COMMENT, text, lambda block: _JS_SIGN.sub("", block))
    for match in _JS_TEXT.finditer(_JS_COMMENT.sub("", text)):
        words = match[1] or match[2] or ""
        if " " in words.strip() and not _NO_PROSE.search(words):
            yield "page", 0, re.sub(r"\$\{[^}]*\}", "X", words)


def _page(text: str) -> Iterator[tuple[str, int, str]]:
    for number, line in enumerate(_TAG.sub("\n", _JINJA.sub("X", text)).split("\n"), 1):
        if line.strip(" X"):
            yield "page", number, html.unescape(line)


def _document(text: str) -> Iterator[tuple[str, int, str]]:
    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    prose = _HTML_COMMENT.sub(blank, _FENCE.sub(blank, text))
    paragraph: list[str] = []
    first = 0
    for number, line in enumerate([*prose.split("\n"), ""], 1):
        begins = not line.strip() or re.match(r"\s*([-*|#>]|\d+\.) ?", line)
        if begins and paragraph:
            yield "document", first, _LINK.sub(r"\1", " ".join(paragraph))
            paragraph = []
        if line.startswith("|"):
            for cell in line.split("|"):
                yield "document", number, _LINK.sub(r"\1", cell)
        elif line.strip():
            first = first if paragraph else number
            paragraph.append(re.sub(r"^\s*([-*#>]+|\d+\.)\s+", "", line))


def _texts(text: str) -> Iterator[tuple[str, int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        comment = re.match(r"\s*#\s*(.*)", line)
        if comment:
            yield "comment", number, comment[1]
        for match in re.finditer(r'"([^"]{12,})"', line):
            yield from _message(match[1], number)


_READERS: dict[str, Callable[[str], Iterator[tuple[str, int, str]]]] = {
    ".py": _python,
    ".sql": _sql,
    ".js": _script,
    ".css": _script,
    ".html": _page,
    ".md": _document,
    ".toml": _texts,
}


if __name__ == "__main__":
    for drawn in sample(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        print(f"{drawn.category:9} {drawn.file}:{drawn.line}: {drawn.text}")
