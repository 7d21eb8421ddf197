"""The reference is what the code says, and nothing of the code is left out."""

import copy
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from typer.main import get_command

import penstock
from _generate import calls, commands, functions, metrics, options, pages, problems, surface
from _generate.page import Undocumented, described, sentence, slug, table
from penstock.cli.main import app
from penstock.failures.verdict import CLASSES

LIFECYCLE = pages.FOLDER.parent / "explanation" / "lifecycle.md"


async def test_every_page_is_what_the_code_says(migrated: str) -> None:
    found = await pages.render(migrated)
    for name, text in found.items():
        written = (pages.FOLDER / name).read_text(encoding="utf-8")
        assert written == text, f"{name} is not what the code says: run `make docs`"
    listed = {path.name for path in pages.FOLDER.glob("*.md")} - {"index.md", "glossary.md"}
    assert listed == set(found), "pages that nobody writes"


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], None]:
    def without(words: Any, key: str) -> None:
        assert key in words
        monkeypatch.delitem(words, key)

    return without


def test_a_field_of_the_api_without_words_is_told(spoil: Callable[[Any, str], None]) -> None:
    spoil(calls.FIELDS, "waiting_for")
    with pytest.raises(Undocumented, match=r"Job\.waiting_for"):
        calls.render()


def test_a_call_and_a_parameter_without_words_are_told() -> None:
    document = copy.deepcopy(calls.document())
    spoilt = document["paths"]["/v1/jobs"]["get"]
    del spoilt["summary"]
    with pytest.raises(Undocumented, match="GET /v1/jobs"):
        calls.of_document(document)
    spoilt["summary"] = "List jobs"
    spoilt["parameters"].append({"name": "colour", "in": "query", "schema": {"type": "string"}})
    with pytest.raises(Undocumented, match="GET /v1/jobs colour"):
        calls.of_document(document)


def test_words_about_what_is_not_there_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(calls.FIELDS, "colour", "Of the job.")
    with pytest.raises(Undocumented, match="descriptions of no field: colour"):
        calls.render()


def test_a_command_and_an_option_without_help_are_told() -> None:
    program: Any = get_command(app)
    command = program.commands["jobs"]
    command.params[0].help = None
    with pytest.raises(Undocumented, match="penstock jobs --status"):
        list(commands.sections(command, "penstock jobs"))
    command.help = None
    with pytest.raises(Undocumented, match="penstock jobs"):
        list(commands.sections(command, "penstock jobs"))


async def test_a_setting_without_words_is_told(
    migrated: str, spoil: Callable[[Any, str], None]
) -> None:
    conn = await asyncpg.connect(migrated)
    try:
        for words, key in (
            (options.WORDS["limits"], "upload_kept"),
            (options.WORDS["handler_options"], "keep_alive"),
            (options.WORDS["environment"], "PENSTOCK_ORIGINS"),
        ):
            spoil(words, key)
            with pytest.raises(Undocumented, match=key):
                await options.render(conn)
    finally:
        await conn.close()


async def test_a_public_function_and_a_view_without_words_are_told(migrated: str) -> None:
    conn = await asyncpg.connect(migrated)
    try:
        made = conn.transaction()
        await made.start()
        await conn.execute("create function penstock.paint_job(colour text) returns int return 1")
        with pytest.raises(Undocumented, match="paint_job"):
            await functions.render(conn)
        await conn.execute("create view penstock.colours as select 1 as colour")
        with pytest.raises(Undocumented, match="colours"):
            await functions.render(conn)
        await made.rollback()
    finally:
        await conn.close()


def test_a_code_and_a_class_without_words_are_told(spoil: Callable[[Any, str], None]) -> None:
    spoil(problems.CLASSES, "no_callback")
    with pytest.raises(Undocumented, match="no_callback"):
        problems.render()
    spoil(problems.CODES, "ref_reused")
    with pytest.raises(Undocumented, match="ref_reused"):
        problems.render()


def test_codes_are_found_in_sql_and_in_python() -> None:
    found = problems.codes()
    assert "insufficient_credits" in found[402]  # raised in SQL
    assert "too_many_failures" in found[429]  # raised in Python
    assert {"not_ready", "unavailable"} <= found[503]  # answered by the server itself
    assert set(problems.CLASSES) == set(CLASSES)


def test_a_label_of_metrics_without_words_is_told(spoil: Callable[[Any, str], None]) -> None:
    spoil(metrics.LABELS, "route")
    with pytest.raises(Undocumented, match="route"):
        metrics.render()


def test_a_name_and_a_call_of_python_without_words_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(penstock.Ticket.cancel, "__doc__", None)
    with pytest.raises(Undocumented, match=r"Ticket\.cancel"):
        surface.render()
    monkeypatch.setattr(surface, "ORDER", surface.ORDER[1:])
    with pytest.raises(Undocumented, match="Penstock"):
        surface.render()


def test_the_lifecycle_names_the_functions_that_sql_draws() -> None:
    """Every arrow of lifecycle.sql is on the page, and every function of the page exists."""
    sql = files("penstock") / "sql" / "functions"
    there = {
        name
        for path in Path(str(sql)).rglob("*.sql")
        for name in re.findall(r"function penstock\.(\w+)\(", path.read_text(encoding="utf-8"))
    }
    drawing = (
        (sql / "lifecycle" / "lifecycle.sql").read_text(encoding="utf-8").partition("Invariants")[0]
    )
    drawn = {name for name in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", drawing) if name in there}
    rows = [line for line in LIFECYCLE.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    named = {name for row in rows for name in re.findall(r"`(\w+_\w+)`", row)}
    assert named <= there
    assert drawn <= named
    picture = LIFECYCLE.with_name("lifecycle.svg").read_text()
    numbers = {int(n) for n in re.findall(r'class="d"[^>]*>(\d+)<', picture)}
    assert numbers == {int(row.split("|")[1]) for row in rows}


def test_what_pages_are_written_with() -> None:
    assert sentence("module:app, or a file") == "module:app, or a file."
    assert sentence("how many at most") == "How many at most."
    assert slug("402 Too few credits") == "402-too-few-credits"
    assert table(["a", ""], [["x|y", "z"]]) == "| a |  |\n|---|---|\n| x\\|y | z |"
    assert table(["a"], []) == ""
    with pytest.raises(Undocumented, match=r"option without a description: b; .* no option: c"):
        described("option", ["a", "b"], {"a": "A.", "c": "C."})
