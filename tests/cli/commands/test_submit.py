"""`submit`: payloads from three sources, with and without checks and waiting."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.cli.output import waiting
from support.shapes import Penstock


def payload(db: psycopg.Connection) -> object:
    row = db.execute("select payload from penstock.job").fetchone()
    assert row
    return row[0]


def test_a_payload_comes_from_the_command_line_a_file_or_standard_input(
    penstock: Penstock, db: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '{"answer": "ünï", "n": 1}'
    (tmp_path / "answer.json").write_text(text, encoding="utf-8")
    for given in (text, "@answer.json", "-"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        done = penstock("submit", "model", "--data", given)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("Submitted job ")
        assert done.out.endswith(", now queued.\n")
        assert payload(db) == json.loads(text)
        db.execute("select penstock.cancel_job(id) from penstock.job")


def test_without_data_the_payload_is_empty(penstock: Penstock, db: psycopg.Connection) -> None:
    answer = json.loads(penstock("submit", "model", "--account", "u1", "--json").out)
    assert (answer["kind"], answer["account"], answer["status"]) == ("model", "u1", "queued")
    assert answer["deduplicated"] is False
    assert payload(db) == {}


@pytest.mark.parametrize("by_app", [False, True])
def test_a_submit_takes_the_options_of_a_job(
    penstock: Penstock, app: str, db: psycopg.Connection, by_app: bool
) -> None:
    words = ["submit", "mark", "--data", '{"essay": "e1"}', "--app", app]
    assert penstock(*words).code == 0  # declares it
    words = words if by_app else words[:-2]
    words += ["--delay", "5m", "--priority", "-7", "--topic", "t", "--dedupe-key", "d", "--json"]
    words += ["--idempotency-key", "i"]
    first, again = penstock(*words), penstock(*words)
    assert (first.code, first.err, again.code) == (0, "", 0)
    job, twin = json.loads(first.out), json.loads(again.out)
    assert (job["status"], job["priority"], job["topic"]) == ("scheduled", -7, "t")
    assert (twin["id"], twin["replayed"]) == (job["id"], True)
    [row] = db.execute("select dedupe_key, run_at - created_at from penstock.job where topic = 't'")
    assert (row[0], row[1].total_seconds()) == ("d", 300)
    words[words.index("i")] = "other"
    assert json.loads(penstock(*words).out)["deduplicated"] is True


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        (
            "--delay",
            "soon",
            "--delay is 'soon'; it may be a number of seconds, or a number with s,",
        ),
        ("--priority", "1001", "Input should be less than or equal to 1000"),
        ("--priority", "high", "Input should be a valid integer"),
    ],
)
@pytest.mark.usefixtures("db")
def test_a_wrong_option_is_named(penstock: Penstock, option: str, value: str, says: str) -> None:
    done = penstock("submit", "model", option, value)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_a_live_job_with_the_same_key_is_named(penstock: Penstock, db: psycopg.Connection) -> None:
    """M9"""
    db.execute("""select penstock.declare_kind('once', 'model', '{"dedupe_field": "key"}')""")
    first = json.loads(penstock("submit", "once", "--data", '{"key": "k"}', "--json").out)
    again = penstock("submit", "once", "--data", '{"key": "k"}')
    assert again.out == f"Job {first['id']} already does the same; it is queued.\n"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object"),
        ("hello", "is not JSON"),
        ("", "is not JSON"),
        ("@nowhere", "cannot read nowhere: No such file"),
        ("@", "cannot read"),
        ("@latin", "is not UTF-8 text"),
        ("[" * 100_000, "nested too deep"),
        ('{"secret": "a\\u0000b"}', "holds a NUL character"),
        ('{"secret": NaN}', "is not JSON"),
        ('{"secret": "\\ud800"}', "half a surrogate pair"),
    ],
)
def test_bad_data_is_wrong_use(
    penstock: Penstock, db: psycopg.Connection, tmp_path: Path, data: str, says: str
) -> None:
    (tmp_path / "latin").write_bytes(b'{"secret": "\xfc"}')
    done = penstock("submit", "model", "--data", data)
    assert (done.code, done.out) == (2, "")
    assert says in " ".join(done.err.split())
    assert "secret" not in done.err
    assert "Traceback" not in done.err
    assert db.execute("select from penstock.job").rowcount == 0


@pytest.mark.usefixtures("db")
def test_an_undeclared_kind_is_a_sentence(penstock: Penstock) -> None:
    done = penstock("submit", "nope")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("penstock: there is no job kind nope; known are model, other.\n")
    near = penstock("submit", "Modle").err
    assert near.startswith(
        "penstock: there is no job kind Modle; known are model, other. Did you mean"
    )
    assert near.splitlines()[0].endswith("Did you mean model?")


def test_an_app_checks_the_payload(penstock: Penstock, app: str, database: str) -> None:
    """E1"""
    done = penstock("submit", "mark", "--data", '{"essay": "e1"}', "--app", app, "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["topic"] == "e1"
    for data, says in (
        ("{}", "essay"),
        ('{"essay": "e1", "points": "many"}', "points"),
        ('{"essay": "e1", "extra": 1}', "extra"),
    ):
        wrong = penstock("submit", "mark", "--data", data, "--app", app)
        assert (wrong.code, wrong.out) == (2, "")
        assert says in wrong.err
    unknown = penstock("submit", "nope", "--app", app)
    assert unknown.code == 1
    assert "declares no job kind nope; it has mark, refuse, tell_pid" in unknown.err
    with psycopg.connect(database) as conn:
        assert conn.execute("select from penstock.job").rowcount == 1


@pytest.mark.usefixtures("db")
def test_an_unknown_app_is_a_sentence(penstock: Penstock) -> None:
    done = penstock("submit", "mark", "--app", "nowhere:app")
    assert (done.code, done.out) == (2, "")
    assert "There is no module nowhere" in done.err


def test_waiting_for_a_kind_without_a_handler_says_so(
    penstock: Penstock, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1"""
    monkeypatch.setattr(waiting, "EXPLAIN_SECONDS", 0.0)
    db.execute("select penstock.register_worker('w1', '15 s', array['model'], array['other'])")
    _, why, _ = penstock("submit", "model", "--wait", "--timeout", "0.3").err.splitlines()
    assert why == (
        "No live worker has a handler for kind model: start a worker with an app that declares it."
    )


def test_waiting_in_vain_says_why_once(
    penstock: Penstock, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "EXPLAIN_SECONDS", 0.0)
    done = penstock("submit", "model", "--wait", "--timeout", "0.3s")
    assert (done.code, done.out) == (1, "")
    accepted, why, late = done.err.splitlines()
    assert accepted.startswith("Submitted job ")
    assert why == "No worker is alive: start one with `penstock worker APP`."
    assert " has not finished within 300 ms: it is queued and goes on; `penstock show " in late
    db.execute("select penstock.pause_queue('model', 'the bill')")
    _, why, _ = penstock("submit", "model", "--wait", "--timeout", "0.3").err.splitlines()
    assert why == "Queue model is paused (the bill): `penstock resume model` resumes it."
    db.execute("select penstock.register_worker('w1')")
    db.execute("select penstock.resume_queue('model')")
    answer = penstock("submit", "model", "--wait", "--timeout", "0.3", "--json")
    assert (answer.code, json.loads(answer.out)["status"]) == (1, "queued")
    assert len(answer.err.splitlines()) == 1
    assert db.execute("select from penstock.job where status = 'queued'").rowcount == 3


@pytest.mark.usefixtures("db")
@pytest.mark.parametrize(
    ("words", "says"),
    [(["--timeout", "5"], "needs --wait"), (["--wait", "--timeout", "soon"], "--timeout is")],
)
def test_a_wrong_timeout_is_wrong_use(penstock: Penstock, words: list[str], says: str) -> None:
    done = penstock("submit", "model", *words)
    assert (done.code, done.out) == (2, "")
    assert says in " ".join(done.err.split())


@pytest.fixture
def worker(app: str, tmp_path: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "worker", app], cwd=tmp_path, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout
        process.stdout.readline()
        yield app
        process.terminate()


def test_waiting_gives_the_result_and_the_exit_code(penstock: Penstock, worker: str) -> None:
    done = penstock("submit", "mark", "--data", '{"essay": "e1", "points": 5}', "--wait")
    assert done.code == 0
    assert json.loads(done.out) == {"points": 5}
    accepted, summary = done.err.splitlines()
    assert accepted.startswith("Submitted job ")
    assert " succeeded in " in summary

    answer = penstock("submit", "mark", "--data", '{"essay": "e2"}', "--wait", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["result"] == {"points": 7}

    failed = penstock("submit", "refuse", "--data", '{"why": "no"}', "--wait", "--app", worker)
    assert (failed.code, failed.out) == (1, "")
    assert failed.err.splitlines()[1].endswith(": no")
    answer = penstock("submit", "refuse", "--data", '{"why": "no"}', "--wait", "--json")
    assert (answer.code, json.loads(answer.out)["status"]) == (1, "failed")
