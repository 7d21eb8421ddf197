"""Exit codes, output and errors of all commands, which never print a traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer

from penstock.cli.main import app
from penstock.cli.output.console import print_json
from support.shapes import Penstock
from upgrade import packages

JOB = "0199f0a4-6c1e-7d3a-9b52-2f6d8a7c1e05"
COMMANDS = (
    ["migrate", "up"],
    ["migrate", "status"],
    ["migrate", "down"],
    ["check"],
    ["submit", "mark"],
    ["jobs"],
    ["show", JOB],
    ["retry", JOB],
    ["cancel", JOB],
    ["queues"],
    ["queues", "reset", "q"],
    ["pause", "q"],
    ["resume", "q"],
    ["status"],
    ["top"],
    ["workers"],
    ["prune"],
)


@pytest.fixture
def server(blank: str, monkeypatch: pytest.MonkeyPatch, penstock: Penstock) -> str:
    """An empty database, named by PENSTOCK_DSN."""
    assert penstock  # this fixture clears the environment first
    monkeypatch.setenv("PENSTOCK_DSN", blank)
    return blank


def test_both_ways_to_start_it_print_the_same_version() -> None:
    script = Path(sys.executable).with_name("penstock")
    for command in ([str(script)], [sys.executable, "-m", "penstock"]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"penstock {version('penstock')}\n"


def test_every_command_has_a_form_for_programs_and_a_sentence_of_help() -> None:
    found = dict(_commands(typer.main.get_command(app), ()))
    assert {words[0] for words in found} >= {words[0] for words in COMMANDS}
    for words, command in found.items():
        assert command.help, words
        assert any("--json" in parameter.opts for parameter in command.params), words


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    under = getattr(command, "commands", None)
    if under is None or getattr(command, "invoke_without_command", False):
        yield words, command
    for name, sub in (under or {}).items():
        yield from _commands(sub, (*words, name))


def test_the_help_fits_a_terminal_and_names_everything(
    penstock: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = penstock("--help")
    assert done.code == 0
    assert all(len(line) <= 80 for line in done.out.splitlines())
    assert "\x1b" not in done.out
    for words in COMMANDS:
        assert f" {words[0]} " in done.out
        assert penstock(words[0], "--help").code == 0


def test_json_for_a_terminal_holds_no_commands_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    print_json({"answer": "\x1b[31m\x9b31m ünï \x7f"})
    out = capfd.readouterr().out
    assert out == '{"answer": "\\u001b[31m\\u009b31m ünï \\u007f"}\n'
    assert json.loads(out)["answer"] == "\x1b[31m\x9b31m ünï \x7f"


@pytest.mark.usefixtures("server")
def test_up_status_check_down(penstock: Penstock) -> None:
    """F10"""
    status = json.loads(penstock("migrate", "status", "--json").out)
    assert status["current"] == 0
    assert not status["is_current"]
    assert "Run `penstock migrate up`." in penstock("migrate", "status").out

    done = penstock("migrate", "up")
    assert done.code == 0
    assert "applied 0001_" in done.out
    again = json.loads(penstock("migrate", "up", "--json").out)
    assert again["migrations"] == []
    assert again["current"] == status["wanted"]

    assert json.loads(penstock("migrate", "status", "--json").out)["is_current"]
    sound = penstock("check")
    assert (sound.code, sound.out) == (0, "Every invariant holds.\n")
    assert json.loads(penstock("check", "--json").out) == []
    moving = penstock("check", "--liveness", "--older-than", "1m")
    assert (moving.code, moving.out) == (0, "Nothing is overdue.\n")
    assert json.loads(penstock("check", "--liveness", "--json").out) == []
    wrong = penstock("check", "--older-than", "1m")
    assert wrong.code == 2
    assert "--liveness" in wrong.err
    assert "--older-than is 'long'" in penstock("check", "--liveness", "--older-than", "long").err

    down = json.loads(penstock("migrate", "down", "--to", "0", "--json").out)
    assert down["current"] == 0
    assert penstock("check").code == 1


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        (
            [],
            "from migration {} to {}? Programs that need the newer one will be refused. [y/N]",
        ),
        (["--to", "0"], ", with all history, accounts and their ledger? [y/N]"),
    ],
)
def test_at_a_terminal_migrate_down_asks_first(
    penstock: Penstock, server: str, tmp_path: Path, words: list[str], asks: str
) -> None:
    later = packages.following(packages.this(tmp_path), tmp_path)
    number = json.loads(later.run(server, "migrate", "up", "--json"))["current"]
    command = [sys.executable, "-m", "penstock", "migrate", "down", *words]
    for answer, code in (("n", 1), ("y", 0)):
        ours, theirs = os.openpty()
        os.write(ours, f"{answer}\n".encode())
        done = subprocess.run(
            command,
            stdin=theirs,
            capture_output=True,
            text=True,
            check=False,
            env=later.environment(server),
        )
        os.close(ours)
        os.close(theirs)
        assert asks.format(number, number - 1) in done.stderr
        assert done.returncode == code, done.stderr
        now = json.loads(penstock("migrate", "status", "--json").out)["current"]
        assert (now == number) is (answer == "n")


def test_a_program_whose_schema_was_replaced_is_still_served(
    penstock: Penstock, server: str
) -> None:
    """R-F27"""
    assert penstock("migrate", "up").code == 0
    with psycopg.connect(server) as conn:
        conn.execute(
            "update penstock.schema_info set functions_checksum = 'of the next version',"
            " previous_checksum = functions_checksum,"
            " previous_number = (select max(number) from penstock.migration)"
        )
    assert "This program is still served" in penstock("migrate", "status").out
    status = json.loads(penstock("migrate", "status", "--json").out)
    assert (status["is_served"], status["is_current"]) == (True, False)
    [line] = [line for line in penstock("doctor").out.splitlines() if " schema " in line]
    assert line.startswith("warning  schema        at migration ")
    assert line.endswith(
        "with functions newer than this program. Fine during an upgrade: replace this program soon."
    )
    assert penstock("check").code == 0
    assert penstock("migrate", "up").code == 0
    assert json.loads(penstock("migrate", "status", "--json").out)["is_current"]


def test_a_broken_invariant_is_printed_and_is_exit_code_1(penstock: Penstock, server: str) -> None:
    assert penstock("migrate", "up").code == 0
    with psycopg.connect(server) as conn:
        conn.execute("update penstock.account set running = 7 where id = 0")
    done = penstock("check")
    assert done.code == 1
    assert done.out.strip()
    found = penstock("check", "--json")
    assert found.code == 1
    assert len(json.loads(found.out)) == len(done.out.splitlines())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_unreachable_server_is_named_with_what_to_do(
    penstock: Penstock, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_DSN", "postgresql://u:open-sesame@127.0.0.1:1/jobs")
    done = penstock(*words)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("penstock: The database at 127.0.0.1:1/jobs cannot be reached")
    assert "correct PENSTOCK_DSN" in done.err
    assert len(done.err.splitlines()) == 2
    assert "open-sesame" not in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["migrate", "down", "--to", "-1"], "it may be 0 to 0"),
        (["migrate", "down", "--to", "soon"], "--to"),
        (["migrate", "sideways"], "sideways"),
        (["import"], "FILE"),
    ],
)
@pytest.mark.usefixtures("server")
def test_wrong_use_is_exit_code_2(penstock: Penstock, words: list[str], says: str) -> None:
    done = penstock(*words)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


@pytest.mark.usefixtures("server")
def test_an_import_of_a_missing_file_is_wrong_use(penstock: Penstock) -> None:
    penstock("migrate", "up")
    done = penstock("import", "nowhere.jsonl")
    assert done.code == 2
    assert "cannot read nowhere.jsonl" in done.err


def test_a_wrong_env_file_is_one_sentence(penstock: Penstock, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("nonsense\n")
    done = penstock("migrate", "status")
    assert done.code == 1
    assert "line 1: expected KEY=VALUE" in done.err


@pytest.mark.usefixtures("server")
def test_a_bug_is_a_sentence_too_and_debug_shows_where(
    penstock: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.db.schema.version.packaged", lambda: 1 / 0)
    done = penstock("migrate", "status")
    assert done.code == 1
    assert "Traceback" not in done.err
    assert "unexpected ZeroDivisionError" in done.err
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "debug")
    assert "Traceback" in penstock("migrate", "status").err


def test_without_an_address_the_embedded_database_is_used(
    penstock: Penstock, tmp_path: Path
) -> None:
    done = penstock("migrate", "up", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["current"] > 0
    assert (tmp_path / ".penstock" / "postgres").is_dir()


def test_with_only_a_demo_commands_use_its_database(
    penstock: Penstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / ".penstock"
    monkeypatch.setenv("PENSTOCK_HOME", str(home / "demo"))
    assert penstock("migrate", "up").code == 0
    monkeypatch.delenv("PENSTOCK_HOME")
    assert penstock("check").code == 0
    assert not (home / "postgres").exists()
    (home / "postgres").mkdir()  # the folder of an app's own database
    assert penstock("check").code == 0
    assert (home / "postgres" / "PG_VERSION").exists(), "it was used, and so created"


# Modules that take long to import and that short commands do not need.
HEAVY = (
    *(
        "penstock.client",
        "penstock.http",
        "penstock.worker",
        "penstock.dashboard",
        "penstock.server",
    ),
    *("fastapi", "starlette", "uvicorn", "jinja2", "httptools", "uvloop", "sqlalchemy", "psycopg"),
    *("rich.progress", "rich.live", "penstock.net.transport"),
)


@pytest.mark.parametrize(
    "words", [["--version"], ["status"], ["queues"], ["jobs"], ["submit", "model"]], ids=" ".join
)
@pytest.mark.usefixtures("db")
def test_a_short_command_loads_little(words: list[str]) -> None:
    """It takes at most 0.6 s: 0.25 s of processor time, on 2 cores in November 2026."""
    script = (
        "import sys\n"
        "from penstock.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        f"    print(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)\n"
    )
    run = [sys.executable, "-c", script, *words]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stderr == "\n", "loaded"
