"""`worker`: one job, some, for ever; stopped by signals, and recycled."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from support.shapes import Penstock


def submit(database: str, kind: str, jobs: int, payload: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        for _ in range(jobs):
            conn.execute("select penstock.submit_job(%s, %s)", [kind, payload])


def statuses(database: str) -> list[str]:
    with psycopg.connect(database) as conn:
        rows = conn.execute("select penstock.list_jobs() ->> 'status'").fetchall()
    return sorted(status for (status,) in rows)


def test_it_runs_one_job_some_or_all_due_jobs(penstock: Penstock, app: str, database: str) -> None:
    """E4, E5"""
    idle = penstock("worker", app, "--once")
    assert (idle.code, idle.err) == (0, "")
    greeting, summary = idle.out.splitlines()
    assert greeting.startswith(f"Worker {os.uname().nodename}-{os.getpid()} serves model, other at")
    assert summary == "Ran 0 jobs: nothing more is due."

    submit(database, "mark", 5, '{"essay": "e"}')
    assert penstock("worker", app, "--once").out.endswith("Ran 1 job: the requested number.\n")
    done = penstock("worker", app, "--max-jobs", "2", "--json")
    greeted, ran = [json.loads(line) for line in done.out.splitlines()]
    assert greeted["queues"] == ["model", "other"]
    assert ran == {"processed": 2, "reason": "max_jobs"}
    assert statuses(database) == ["queued"] * 2 + ["succeeded"] * 3
    done = penstock("worker", app, "--max-jobs", "10", "--concurrency", "1", "--poll", "0.1")
    assert done.out.endswith("Ran 2 jobs: nothing more is due.\n")


def test_it_serves_the_queues_it_is_given(
    penstock: Penstock, app: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER_ID", "room-7")
    assert penstock("worker", app, "--once").code == 0  # declares
    submit(database, "mark", 1, '{"essay": "e"}')
    done = penstock("worker", app, "--once", "--queues", "other")
    assert done.out.startswith("Worker room-7 serves other at ")
    assert done.out.endswith("Ran 0 jobs: nothing more is due.\n")
    assert statuses(database) == ["queued"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--once", "--max-jobs", "3"], "--once and --max-jobs exclude one another"),
        (["--once", "--daemon"], "--once and --daemon exclude one another"),
        (["--max-jobs", "0"], "--max-jobs"),
        (["--concurrency", "0"], "--concurrency"),
        (["--recycle-after", "0"], "--recycle-after"),
        (["--once", "--recycle-after", "3"], "--recycle-after is for --daemon"),
        (["--once", "--poll", "soon"], "--poll is 'soon'"),
        (["--once", "--poll", "0"], "must be at least"),
        (["--once", "--queues", "nope"], "nope: the app has no handler for it"),
        (["--once", "--queues", "model,"], "names with commas"),
    ],
)
def test_wrong_use_is_exit_code_2(
    penstock: Penstock, app: str, words: list[str], says: str
) -> None:
    done = penstock("worker", app, *words)
    assert (done.code, done.out) == (2, "")
    assert says in " ".join(done.err.replace("│", " ").split())


def test_without_an_app_it_says_what_to_give(penstock: Penstock) -> None:
    done = penstock("worker", "--once")
    assert (done.code, done.out) == (2, "")
    assert "No app was given" in done.err
    assert "module:app" in done.err


def test_a_wrong_app_name_is_wrong_use(penstock: Penstock, app: str, tmp_path: Path) -> None:
    module = app.partition(":")[0]
    (tmp_path / "broken.toml").write_text("[queues\n")
    (tmp_path / "odd.toml").write_text("[queues.q]\nconcurrency = 0\n")
    for named in ("nowhere:app", f"{module}:nope", f"{module}:model", "broken.toml", "odd.toml"):
        done = penstock("worker", named)
        assert (named, done.code, done.out) == (named, 2, "")
    (tmp_path / "needs_a_key.py").write_text("raise RuntimeError('set THE_KEY')\n")
    done = penstock("worker", "needs_a_key:app")
    assert (done.code, done.out) == (1, "")
    assert "RuntimeError: set THE_KEY (needs_a_key.py:1)." in done.err


def test_a_module_may_run_an_event_loop_while_it_is_loaded(
    penstock: Penstock, app: str, tmp_path: Path
) -> None:
    module = app.partition(":")[0]
    (tmp_path / f"loop_{module}.py").write_text(
        f"import asyncio\nfrom {module} import app\nasyncio.run(asyncio.sleep(0))\n"
    )
    assert penstock("worker", f"loop_{module}:app", "--once").code == 0
    submitted = penstock(
        "submit", "refuse", "--data", '{"why": "w"}', "--app", f"loop_{module}:app"
    )
    assert submitted.code == 0
    assert penstock("doctor", f"loop_{module}:app").out.startswith("ok       app ")


def test_an_app_without_jobs_has_nothing_to_run(penstock: Penstock, tmp_path: Path) -> None:
    (tmp_path / "no_jobs.py").write_text("from penstock import Penstock\napp = Penstock()\n")
    done = penstock("worker", "no_jobs:app")
    assert (done.code, done.out) == (1, "")
    assert "nothing to run" in done.err


def test_an_old_schema_is_refused_with_what_to_do(
    penstock: Penstock, app: str, blank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DSN", blank)
    done = penstock("worker", app, "--once")
    assert (done.code, done.out) == (1, "")
    assert "run `penstock migrate up`" in done.err


@contextmanager
def started(app: str, folder: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """A worker process that has printed its name; it is killed at the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "worker", app, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            greeting = process.stdout.readline()
            assert greeting.startswith("Worker "), process.stderr and process.stderr.read()
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_after_a_signal_it_stops_in_good_order(
    app: str, tmp_path: Path, database: str, number: signal.Signals
) -> None:
    """E4"""
    with started(app, tmp_path) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "Ran 0 jobs: stopped by a signal.\n")
    assert err.startswith("Stopping:")
    with psycopg.connect(database) as conn:
        assert conn.execute("select from penstock.worker where stopped_at is null").rowcount == 0


SLOW = """
import asyncio
from penstock import Penstock
app = Penstock()

@app.job(queue=app.queue("slow"))
async def wait(n: int) -> None:
    print("begun", flush=True)
    await asyncio.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_releases_running_jobs(
    tmp_path: Path, database: str, app: str, penstock: Penstock, number: signal.Signals
) -> None:
    assert app
    (tmp_path / "slow_app.py").write_text(SLOW)
    with started("slow_app:app", tmp_path) as process:
        assert penstock("submit", "wait", "--data", '{"n": 1}').code == 0
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        assert process.stderr.readline().startswith("Stopping:")
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert err.startswith("Leaving now:")
    assert process.returncode == 128 + number
    assert statuses(database) == ["queued"]


def test_after_this_many_jobs_it_restarts_in_the_same_process(
    app: str, tmp_path: Path, database: str, penstock: Penstock
) -> None:
    """F7"""
    assert penstock("worker", app, "--once").code == 0
    submit(database, "tell_pid", 2, '{"n": 1}')
    with started(app, tmp_path, "--recycle-after", "1", "--queues", "other") as process:
        assert process.stdout
        for _ in range(2):
            assert process.stdout.readline() == "Recycling after 1 job.\n"
            assert process.stdout.readline().startswith("Worker "), "started again"
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0
    with psycopg.connect(database) as conn:
        pids = conn.execute("select result from penstock.finished").fetchall()
    assert pids == [(process.pid,)] * 2
