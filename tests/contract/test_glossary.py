"""No name and no sentence of the package and the documents uses a word that the glossary replaces.

The words are in docs/reference/glossary.md, each with the one to use instead.
"""

import re
from collections.abc import Iterator

from docs.sentences import ROOT, all_sentences

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
READ = re.compile(r"(src|bench|deploy|docs)/|[A-Z]+\.md$")
# The glossary names the words themselves. The requirements quote other people's descriptions. What
# writes the reference is a program and no document.
NOT_READ = re.compile(r"docs/(reference/glossary\.md|requirements\.md|_generate/.*\.py)$")
_WORD = re.compile(r"[A-Za-z_]\w{2,}")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_STRING_OR_COMMENT = {
    ".py": re.compile(
        r'("""|\'\'\').*?\1|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*', re.DOTALL
    ),
    ".sql": re.compile(r"'(?:[^']|'')*'|--[^\n]*"),
    ".js": re.compile(r"`(?:\\.|[^`\\])*`|\"(?:\\.|[^\"\\\n])*\"|//[^\n]*|/\*.*?\*/", re.DOTALL),
}


def _table(heading: str) -> list[list[str]]:
    """The cells of the rows below a heading."""
    section = GLOSSARY.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


def _names() -> Iterator[tuple[str, int, str]]:
    for suffix, no_name in _STRING_OR_COMMENT.items():
        for top in ("src", "bench"):
            for path in sorted((ROOT / top).rglob(f"*{suffix}")):
                file = str(path.relative_to(ROOT))
                if "vendor" in path.parts:
                    continue
                yield file, 1, path.stem
                text = no_name.sub(lambda match: "\n" * match[0].count("\n"), path.read_text())
                for number, line in enumerate(text.splitlines(), 1):
                    for word in _WORD.findall(line):
                        yield file, number, word


def test_no_name_has_a_part_that_the_glossary_replaces() -> None:
    rows = _table("Parts of names that are not used")
    replaced = {part.strip(): row[1] for row in rows for part in row[0].split(",")}
    allowed = {name for row in rows for name in re.findall(r"`(\w+)`", row[2])}
    wrong = sorted(
        f"{file}:{line}: {name}: use {replaced[part.lower()]}"
        for file, line, name in set(_names())
        if name not in allowed
        for part in _PART.findall(name)
        if part.lower() in replaced
    )
    assert not wrong, "\n".join(wrong)


def test_no_sentence_has_words_that_the_glossary_replaces() -> None:
    rows = _table("Words that are not used in text")
    replaced = {words.strip(): row[1] for row in rows for words in row[0].split(",")}
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, replaced))})\b", re.IGNORECASE)
    allowed = [phrase.strip() for row in rows for phrase in row[2].split(",") if phrase.strip()]
    exceptions = re.compile("|".join(map(re.escape, allowed)), re.IGNORECASE)
    wrong = [
        f"{sentence.file}:{sentence.line}: {sentence.text}: use {replaced[match[0].lower()]}"
        for sentence in all_sentences()
        if READ.match(sentence.file) and not NOT_READ.match(sentence.file)
        for match in [pattern.search(exceptions.sub("", sentence.text))]
        if match
    ]
    assert not wrong, "\n".join(wrong)
