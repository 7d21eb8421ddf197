"""House rules that no linter knows, kept by reading the files."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

SRC = Path(penstock.__file__).parent
SQL = SRC / "sql"
SQL_FILES = sorted(SQL.rglob("*.sql"))

LONGEST_FILE = 400
LONGEST_LINE = 100
# The only files that move a job from one status to another; lifecycle.sql has the map.
MOVERS = {"claim.sql", "finish.sql", "recover.sql", "lifecycle.sql"}

QUIET = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\$r\$.*?\$r\$", re.DOTALL)


def code(text: str) -> str:
    """SQL without comments and strings, on the same lines."""
    return QUIET.sub(lambda quiet: "\n" * quiet[0].count("\n"), text)


def names(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


every_sql_file = pytest.mark.parametrize("path", SQL_FILES, ids=names)


def test_there_is_sql_to_read() -> None:
    assert SQL_FILES


def test_no_file_is_longer_than_a_newcomer_can_hold_in_mind() -> None:
    lengths = {
        names(path): len(path.read_text().splitlines()) for path in (*SRC.rglob("*.py"), *SQL_FILES)
    }
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}


@every_sql_file
def test_lines_are_short_and_indented_by_spaces(path: Path) -> None:
    faults = [
        f"line {number}: {fault}"
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        for fault in _line_faults(line)
    ]
    assert faults == []


def _line_faults(line: str) -> Iterator[str]:
    if "\t" in line:
        yield "a tab"
    if line != line.rstrip():
        yield "blanks at the end"
    if len(line) > LONGEST_LINE:
        yield f"{len(line)} characters"


@every_sql_file
def test_keywords_are_in_lower_case(path: Path) -> None:
    lines = code(path.read_text()).splitlines()
    shouting = [
        f"line {number}: {word}"
        for number, line in enumerate(lines, start=1)
        for word in re.findall(r"\b[A-Z]{2,}\b", line)
    ]
    assert shouting == []


@every_sql_file
def test_statements_inside_a_body_are_indented_by_two(path: Path) -> None:
    faults = [
        f"line {number}: indented by {len(line) - len(line.lstrip())}"
        for number, line in enumerate(code(path.read_text()).splitlines(), start=1)
        if re.match(r" (?! )(select|insert|update|delete|if|end|return|begin|for|perform)\b", line)
    ]
    assert faults == []


def test_functions_with_the_owners_rights_say_where_their_names_are_found() -> None:
    for path in SQL_FILES:
        for header in re.findall(
            r"create or replace function.*?as \$\$", path.read_text(), re.DOTALL
        ):
            if "security definer" in header:
                assert "set search_path = pg_catalog, pg_temp" in header, f"{path.name}: {header}"


def test_functions_live_in_functions_and_tables_in_migrations() -> None:
    """Else a function outlives its file, or a table comes and goes with a reload (migrate.py)."""
    for path in SQL_FILES:
        text = code(path.read_text())
        if "migrations" in path.parts:
            assert not re.search(r"create (or replace )?(function|procedure|view)\b", text), path
        elif path.parent.parent.name == "functions":
            top = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
            assert not re.search(r"\b(create|alter) table\b", top), path


def test_only_the_lifecycle_files_move_a_job() -> None:
    for path in SQL_FILES:
        if path.parent.parent.name == "functions" and path.name not in MOVERS:
            moves = re.findall(
                r"update penstock\.job\b[^;]*?\bset\b(?:(?!\bwhere\b|\bfrom\b)[^;])*?\bstatus\s*=",
                code(path.read_text()),
            )
            assert moves == [], f"{path.name} moves a job"


def test_there_is_one_insert_into_job() -> None:
    """Bulk, single and HTTP submits share it: a rule of a new job is written once."""
    found = [
        path.name
        for path in SQL_FILES
        if path.parent.parent.name == "functions"
        for _ in re.finditer(r"insert into penstock\.job\b", code(path.read_text()))
    ]
    assert found == ["insert.sql"]


def test_nothing_asks_another_clock() -> None:
    """F9: `penstock.clock()` is the only "now", or tests could not move it."""
    for path in SQL_FILES:
        if path.parent.parent.name == "functions" and path.name != "clock.sql":
            found = re.findall(
                r"\bnow\(\)|\bclock_timestamp\(\)|\bcurrent_timestamp\b|\bstatement_timestamp\(\)",
                code(path.read_text()),
            )
            assert found == [], path.name
