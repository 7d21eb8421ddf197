"""Fifteen mistakes of people who write their first app, with the whole message for each.

A message says what is wrong, where (file and line if there is one), and what is allowed, so that a
person can correct it from the message alone.
"""

import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from support.signing import SECRET
from upgrade import packages

# Each command runs in its own process.
pytestmark = pytest.mark.timeout(240)

APP = """
from penstock import Penstock

app = Penstock()
mail = app.queue("mail", concurrency=2)


@app.job(queue=mail, attempts=1)
async def send(to: str, copies: int = 1) -> dict:
    return {"to": to}
"""
HANDLERS = """

@app.job(queue=mail, attempts=1)
async def divide(n: int) -> float:
    return split(n)


def split(n: int) -> float:
    return 1 / n


@app.job(queue=mail, attempts=1)
async def collect(n: int) -> dict:
    return {"seen": {n}}


@app.job(queue=mail, attempts=1)
async def forget(n: int) -> dict:
    return {"sent": send(to="kim")}
"""
ASK = """
import asyncio
from shop import send


async def main() -> None:
    send.submit(to="kim")


asyncio.run(main())
"""
TOML = """
[queues.mail]
concurency = 2
"""


@dataclass(frozen=True)
class Read:
    """The output of a command."""

    code: int
    out: str
    err: str


class Project:
    """A folder with an app and a database, in which commands run as processes."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self._folder = folder
        self.dsn = dsn
        self.write("shop.py", APP)

    def write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def change(self, old: str, new: str) -> None:
        text = (self._folder / "shop.py").read_text()
        assert old in text
        self.write("shop.py", text.replace(old, new))

    def run(self, *words: str, dsn: str | None = None) -> Read:
        return self.python("-m", "penstock", *words, dsn=dsn)

    def python(self, *words: str, dsn: str | None = None) -> Read:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "PG"))}
        environ = {**kept, "PENSTOCK_DSN": dsn or self.dsn, "NO_COLOR": "1", "COLUMNS": "200"}
        environ["PENSTOCK_SECRET"] = SECRET
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self._folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        return Read(done.returncode, self._plain(done.stdout), self._plain(done.stderr))

    def _plain(self, text: str) -> str:
        """Replace the parts that differ in each run."""
        text = text.replace(str(self._folder), "FOLDER")
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "JOB", text)
        return re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "NOW", text)


@pytest.fixture
def project(tmp_path: Path, database: str) -> Project:
    return Project(tmp_path, database)


def refused(message: str, code: int = 1) -> Read:
    """Expect this message on standard error, and nothing else."""
    return Read(code, "", f"{message}\n")


def test_1_a_wrong_type(project: Project) -> None:
    submit = ("submit", "send", "--app", "shop:app", "--data")
    assert project.run(*submit, '{"to": 5, "copies": "many", "bcc": "x"}') == refused(
        "penstock: to of job kind send must be a valid string; copies must be a valid integer,"
        " unable to parse string as an integer; bcc is not a field; known are to, copies",
        2,
    )


def test_2_an_unknown_kind(project: Project) -> None:
    assert project.run("submit", "sned", "--app", "shop:app") == refused(
        "penstock: shop:app declares no job kind sned; it has send. Did you mean send?"
    )
    project.run("worker", "shop:app", "--once")
    assert project.run("submit", "sned") == refused(
        "penstock: there is no job kind sned; known are send. Did you mean send?\n"
        "A kind is declared when a worker with its app or its penstock.toml starts for the first"
        " time. Check the spelling of the name."
    )


def test_3_a_missing_worker(project: Project) -> None:
    words = ("submit", "send", "--app", "shop:app", "--data", '{"to": "kim"}')
    assert project.run(*words, "--wait", "--timeout", "0.5s") == refused(
        "Submitted job JOB, now queued. No worker that serves its queue is alive: `penstock worker"
        " APP` starts one.\n"
        "Job JOB has not finished within 500 ms: it is queued and goes on; `penstock show JOB`"
        " shows it. No worker that serves its queue is alive: `penstock worker APP` starts one."
    )
    lines = project.run("status").out.splitlines()
    assert lines[3].split()[:3] == ["mail", "no", "worker"]
    assert lines[-1] == "No workers: `penstock worker APP` starts one."


def test_4_a_wrong_address_or_password(project: Project, database: str) -> None:
    with psycopg.connect(database) as conn:
        where = f"{conn.info.host}, database {conn.info.dbname}"
    assert project.run("status", dsn=database.replace("penstock_owner", "stranger")) == refused(
        f'penstock: The database at {where} refused user stranger: role "stranger" does not exist.'
        "\nCorrect the user in the address (PENSTOCK_DSN), create the role, or allow it in the"
        " server's pg_hba.conf."
    )
    assert project.run("status", dsn="postgresql://kim:sesame@127.0.0.1:1/shop") == refused(
        "penstock: The database at 127.0.0.1:1/shop cannot be reached: Connection refused.\n"
        "Start the server, or correct PENSTOCK_DSN (a file .env in this folder may set it)."
        " `penstock doctor` examines the cause."
    )
    assert project.run("status", dsn="postgresql://kim:sesame@nowhere.invalid/shop").err.endswith(
        "\nCorrect the host in the address (PENSTOCK_DSN). `penstock doctor` examines the cause.\n"
    )
    assert project.run("status", dsn="postgresq://kim:sesame@127.0.0.1/shop") == refused(
        "penstock: The address of the database is not of the form"
        " postgresql://user:password@host:port/database: correct PENSTOCK_DSN, or the app's dsn."
    )


def test_5_a_port_in_use(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert project.run("serve", "shop:app", "--port", str(port)) == refused(
            f"penstock: The address 127.0.0.1 port {port} cannot be used: Address already in use."
            " Is a server running there already? Choose another port with --port."
        )


def test_6_an_old_schema(
    project: Project,
    blank: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for words in (("worker", "shop:app", "--once"), ("serve", "shop:app", "--port", "0")):
        assert project.run(*words, dsn=blank) == refused(
            "penstock: The database has no Penstock schema yet: run `penstock migrate up`."
        )
    project.run("migrate", "up", dsn=blank)
    number = int(re.findall(r"is at (\d+)", project.run("migrate", "status", dsn=blank).out)[0])
    folder = tmp_path_factory.mktemp("versions")
    later = packages.following(packages.this(folder), folder)
    monkeypatch.setenv("PYTHONPATH", str(later.folder))
    assert project.run("worker", "shop:app", "--once", dsn=blank) == refused(
        f"penstock: The database's schema is at migration {number} and this program needs"
        f" {number + 1}: run `penstock migrate up`."
    )


def test_7_a_typo_in_toml(project: Project) -> None:
    project.write("penstock.toml", TOML)
    known = (
        "concurrency, rate, burst, order, aging_step, timeout, stale_after, stuck_after, retry,"
        " recovery, retention, retention_failed, inline, local_only, drive"
    )
    assert project.run("worker", "--once") == refused(
        "penstock: FOLDER/penstock.toml, [queues.mail], concurency: is not an option. Did you mean"
        f" concurrency? Known are {known}",
        2,
    )


def test_8_a_queue_that_is_not_there(project: Project) -> None:
    project.change("queue=mail", 'queue="mial"')
    assert project.run("worker", "shop:app", "--once") == refused(
        "penstock: there is no queue mial, which job kind send (FOLDER/shop.py:8) names; known are"
        ' mail. Did you mean mail?\nName one of these, or declare it first: app.queue("mial").'
    )


def fails(project: Project, kind: str) -> tuple[str, str]:
    """Run a failing job; return the worker's log line and the note in `jobs`."""
    project.write("shop.py", APP + HANDLERS)
    project.run("submit", kind, "--app", "shop:app", "--data", '{"n": 0}')
    logged, listed = "", ""
    for _ in range(5):  # a worker that gets little CPU time releases the job
        logged += project.run("worker", "shop:app", "--once").err
        listed = project.run("jobs").out
        if "failed" in listed:
            break
    [line] = [line for line in listed.splitlines() if "failed" in line]
    [warning] = [line for line in logged.splitlines() if f"kind={kind}" in line]
    return warning, line[line.index("bug: ") :]


def test_9_a_handler_that_raises(project: Project) -> None:
    logged, note = fails(project, "divide")
    assert logged.startswith(
        "NOW WARNING penstock.worker: a handler failed: ZeroDivisionError at FOLDER/shop.py:19 in"
        " split; frames: FOLDER/shop.py:19 in split, FOLDER/shop.py:15 in divide job=JOB"
    )
    assert note == "bug: attempts_exhausted: ZeroDivisionError: division by zero"
    with psycopg.connect(project.dsn) as conn:
        [job] = conn.execute("select id::text from penstock.finished").fetchone() or [""]
    shown = project.run("show", job).out
    assert shown.splitlines()[-3:] == [
        "Attempt 1 failed at",
        "  FOLDER/shop.py:19 in split",
        "  FOLDER/shop.py:15 in divide",
    ]


def test_10_a_forgotten_await(project: Project) -> None:
    logged, note = fails(project, "forget")
    assert logged == (
        "NOW WARNING penstock.worker: the result that the handler at"
        " FOLDER/shop.py:27 returned cannot be kept: see the job's error job=JOB kind=forget"
    )
    assert note == (
        "bug: result is not JSON: result.sent is a coroutine of `send`, which nobody awaited: write"
        " `await` before the call"
    )

    project.write("ask.py", ASK)
    asked = project.python("ask.py")
    assert asked.code == 0, "nothing was submitted, and Python says so with the line"
    assert asked.err.splitlines()[:2] == [
        "FOLDER/ask.py:7: RuntimeWarning: coroutine 'Submission.submit' was never awaited",
        '  send.submit(to="kim")',
    ]


def test_11_a_result_that_is_not_json(project: Project) -> None:
    logged, note = fails(project, "collect")
    assert logged == (
        "NOW WARNING penstock.worker: the result that the handler at"
        " FOLDER/shop.py:22 returned cannot be kept: see the job's error job=JOB kind=collect"
    )
    assert note == (
        "bug: result is not JSON: result.seen is a set; it may be a dict with text for keys, a"
        " list, a text, a number, True, False or None"
    )


def test_12_two_definitions_of_a_queue(project: Project) -> None:
    project.write("letters.py", APP.replace("concurrency=2", "concurrency=3"))
    project.run("worker", "shop:app", "--once")
    assert project.run("worker", "letters:app", "--once") == refused(
        'penstock: queue mail is declared differently by shop at FOLDER/shop.py:5 ({"concurrency":'
        ' 2}) and by letters at FOLDER/letters.py:5 ({"concurrency": 3})\n'
        "Make both declarations equal, or rename one. If the first is gone or was moved, `penstock"
        " queues reset mail` lets the next app that starts declare it. All programs of one app use"
        ' one name: Penstock(name="shop").'
    )
    project.write("shop.py", APP + 'app.queue("mail", concurrency=3)\n')
    assert project.run("worker", "shop:app", "--once") == refused(
        "penstock: shop.py:11: queue mail is declared twice: at FOLDER/shop.py:5 and at"
        " FOLDER/shop.py:11. Give one of them another name."
    )


def test_13_a_wrong_duration(project: Project) -> None:
    project.change("concurrency=2", 'timeout="5 minutes"')
    assert project.run("worker", "shop:app", "--once") == refused(
        "penstock: shop.py:5: timeout is '5 minutes'; it may be a number of seconds, or a number"
        ' with s, m, h or d like "90s", "5m", "2h", "7d"'
    )


def test_14_a_dedupe_that_names_nothing(project: Project) -> None:
    project.change("attempts=1", 'dedupe="copy"')
    assert project.run("worker", "shop:app", "--once") == refused(
        "penstock: shop.py:8: dedupe is 'copy'; as a text it names a parameter, and known are to,"
        " copies. Did you mean copies? For one value in all jobs write dedupe=Constant('copy'), in"
        ' TOML dedupe = { constant = "copy" }'
    )


def test_15_a_kind_that_moved_to_another_module(project: Project) -> None:
    project.run("worker", "shop:app", "--once")
    project.write("letters.py", APP.replace("attempts=1", "attempts=5"))
    assert project.run("worker", "letters:app", "--once") == refused(
        'penstock: kind send is declared differently by shop at FOLDER/shop.py:8 ({"queue": "mail",'
        ' "attempts": 1}) and by letters at FOLDER/letters.py:8 ({"queue": "mail", "attempts":'
        " 5})\n"
        "Make both declarations equal, or rename one. If the first is gone or was moved, `penstock"
        " queues reset mail` lets the next app that starts declare it. All programs of one app use"
        ' one name: Penstock(name="shop").'
    )
    project.write("shop.py", "from letters import app\n")  # it has moved
    assert project.run("worker", "shop:app", "--once").code == 0
    assert project.run("worker", "letters:app", "--once").code == 0
