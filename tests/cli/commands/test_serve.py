"""`serve`: the API in one process or several, with a worker or without, and how it stops."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from penstock.cli.serving.processes import Children
from support.shapes import Penstock
from support.signing import SECRET

WAIT_SECONDS = 20

SLOW = """
import asyncio
from penstock import Penstock
app = Penstock()

@app.job(queue=app.queue("slow"))
async def wait(n: int) -> int:
    await asyncio.sleep(n)
    return n
"""


class Served:
    """A server process that has printed its address."""

    def __init__(self, process: "subprocess.Popen[str]", greeting: dict[str, Any]) -> None:
        self.process = process
        self.greeting = greeting
        self.client = httpx.Client(
            base_url=greeting["url"],
            headers={"Authorization": f"Bearer {SECRET}"},
            timeout=WAIT_SECONDS,
        )


@contextmanager
def served(folder: Path, *words: str) -> Iterator[Served]:
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", *words, "--port", "0", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            greeting = process.stdout.readline()
            assert greeting, process.stderr and process.stderr.read()
            found = Served(process, json.loads(greeting))
            with found.client:
                yield found
        finally:
            process.kill()


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS} s: {what}"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def secret(penstock: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert penstock  # it clears the environment first
    monkeypatch.setenv("PENSTOCK_SECRET", SECRET)


def test_it_serves_and_stops_in_good_order(app: str, tmp_path: Path) -> None:
    """It runs no jobs without --worker; after SIGTERM its exit code is 0."""
    with served(tmp_path, app) as server:
        sent = server.client.post("/v1/jobs", json={"kind": "mark", "payload": {"essay": "e"}})
        assert sent.status_code == 201
        read = server.client.get(f"/v1/jobs/{sent.json()['id']}").json()
        assert (read["status"], read["waiting_for"]) == ("queued", "no_worker")
        assert server.client.get("/healthz").status_code == 200
        server.process.terminate()
        _, err = server.process.communicate(timeout=WAIT_SECONDS)
    assert server.process.returncode == 0
    assert err.startswith("Stopping:")


def test_with_a_worker_it_runs_them_too(app: str, tmp_path: Path, database: str) -> None:
    with served(tmp_path, app, "--worker") as server:
        assert server.greeting["worker"]
        sent = server.client.post(
            "/v1/jobs", json={"kind": "mark", "payload": {"essay": "e"}}
        ).json()

        def has_succeeded() -> bool:
            read = server.client.get(f"/v1/jobs/{sent['id']}").json()
            return bool(read["status"] == "succeeded")

        until(has_succeeded, "the job has run")
        server.process.terminate()
        server.process.communicate(timeout=WAIT_SECONDS)
    assert server.process.returncode == 0
    with psycopg.connect(database) as conn:
        left = conn.execute("select from penstock.worker where stopped_at is null").rowcount
        assert left == 0, "the worker has reported that it stopped"


def test_functions_call_back_at_its_address(tmp_path: Path) -> None:
    """M6: at its port, unless PENSTOCK_PUBLIC_URL is set."""
    called: list[dict[str, Any]] = []

    class Function(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            called.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Function) as function:
        threading.Thread(target=function.serve_forever, daemon=True).start()
        (tmp_path / "penstock.toml").write_text(
            '[queues.outside]\n[jobs.mark]\nqueue = "outside"\nhandler = "dispatch"\n'
            f'url = "http://127.0.0.1:{function.server_port}/"\nfields = {{ n = "int" }}\n'
        )
        with served(tmp_path, "--worker") as server:
            job = server.client.post("/v1/jobs", json={"kind": "mark", "payload": {"n": 1}}).json()
            until(lambda: called, "the function is called")
            address = f"{server.greeting['url']}/v1/callbacks/{job['id']}"
            assert called[0]["callback_url"] == address
            report = {"token": called[0]["token"], "status": "succeeded", "result": 7}
            answer = httpx.post(address, json=report).json()
            assert answer["results"][0]["outcome"] == "accepted"
            server.process.terminate()
            server.process.communicate(timeout=WAIT_SECONDS)
        function.shutdown()


def test_without_an_app_it_serves_the_kinds_in_the_database(
    db: psycopg.Connection, tmp_path: Path
) -> None:
    with served(tmp_path) as server:
        sent = server.client.post("/v1/jobs", json={"kind": "model", "payload": {}})
        assert sent.status_code == 201
    assert db.execute("select count(*) from penstock.job").fetchone() == (1,)


def test_a_server_without_a_worker_does_upkeep(db: psycopg.Connection, tmp_path: Path) -> None:
    """Design 6: upkeep runs in every worker and server."""
    job = db.execute("select penstock.submit_job('model', '{}') ->> 'id'").fetchone()
    worker = db.execute("select penstock.register_worker('gone', '1 second')").fetchone()
    assert job
    assert worker
    db.execute("select * from penstock.claim_jobs(%s, 'model', 1)", worker)
    with served(tmp_path):

        def recovered() -> bool:
            found = db.execute("select status::text from penstock.job").fetchone()
            return found in (("queued",), ("scheduled",))

        until(recovered, "the lost worker's job is recovered")


def test_at_a_second_signal_it_stops_at_once(tmp_path: Path, app: str, database: str) -> None:
    """After the first signal running jobs may go on for a moment; the second releases them."""
    assert app
    (tmp_path / "slow_app.py").write_text(SLOW)
    with served(tmp_path, "slow_app:app", "--worker") as server:
        sent = server.client.post("/v1/jobs", json={"kind": "wait", "payload": {"n": 600}}).json()
        until(lambda: is_running(server, sent["id"]), "the job runs")
        assert server.process.stderr
        server.process.terminate()
        assert server.process.stderr.readline().startswith("Stopping:")
        server.process.terminate()
        _, err = server.process.communicate(timeout=WAIT_SECONDS)
    assert err.startswith("Leaving now.")
    assert server.process.returncode == 128 + signal.SIGTERM
    with psycopg.connect(database) as conn:
        assert conn.execute("select status::text from penstock.job").fetchall() == [("queued",)]


def is_running(server: Served, job: str) -> bool:
    return bool(server.client.get(f"/v1/jobs/{job}").json()["status"] == "running")


def test_a_call_that_runs_jobs_does_not_keep_a_server_from_stopping(
    tmp_path: Path, app: str
) -> None:
    """It releases the job that it runs, and its caller gets an answer."""
    assert app
    (tmp_path / "slow_app.py").write_text(SLOW)
    with served(tmp_path, "slow_app:app") as server:
        sent = server.client.post("/v1/jobs", json={"kind": "wait", "payload": {"n": 600}}).json()
        answers: list[httpx.Response] = []
        call = threading.Thread(
            target=lambda: answers.append(
                server.client.post("/v1/queues/slow/process", json={"seconds": 300}, timeout=60)
            )
        )
        call.start()
        until(lambda: is_running(server, sent["id"]), "the job runs")
        began = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        server.process.communicate(timeout=WAIT_SECONDS)
        assert time.monotonic() - began < 12
        call.join(WAIT_SECONDS)
    assert server.process.returncode == 0
    [answer] = answers
    assert (answer.json()["processed"], answer.json()["given_back"]) == (0, 1)


def test_several_processes_share_an_address(app: str, tmp_path: Path) -> None:
    """A process that dies is replaced, and all exit when their parent is killed."""
    with served(tmp_path, app, "--processes", "2") as server:
        assert server.greeting["processes"] == 2
        first = children(server.process.pid)
        assert len(first) == 2
        sent = server.client.post("/v1/jobs", json={"kind": "mark", "payload": {"essay": "e"}})
        assert sent.status_code == 201
        os.kill(first[0], signal.SIGKILL)
        until(
            lambda: len(found := children(server.process.pid)) == 2 and first[0] not in found,
            "another one replaces it",
        )
        # A new connection each time, to any of the processes.
        for _ in range(4):
            assert httpx.get(f"{server.greeting['url']}/healthz").status_code == 200
        last = children(server.process.pid)
        server.process.kill()
        server.process.wait(WAIT_SECONDS)
        until(lambda: not any(map(is_alive, last)), "the children have exited")


def test_several_processes_stop_together(app: str, tmp_path: Path) -> None:
    with served(tmp_path, app, "--processes", "2") as server:
        last = children(server.process.pid)
        server.process.terminate()
        server.process.communicate(timeout=WAIT_SECONDS)
        assert server.process.returncode == 0
        assert not any(map(is_alive, last))


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(pid) for pid in found]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_signal_while_processes_start_stops_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may arrive between the start of a process and its entry in the list."""
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def start_and_signal(_words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(start([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        if len(started) == 2:
            group._stop(signal.SIGTERM, None)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start_and_signal)
    with socket.socket() as sock:
        group = Children(["serve"], sock, 3)
        assert group._watch(lambda: None) == 0
    assert [each.returncode for each in started] == [-signal.SIGTERM] * 2


@pytest.mark.parametrize("processes", ["1", "2"])
def test_an_address_in_use_is_a_sentence(penstock: Penstock, app: str, processes: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = penstock("serve", app, "--port", port, "--processes", processes)
    assert (done.code, done.out) == (1, "")
    assert f"port {port} cannot be used: Address already in use" in done.err
    assert "Choose another port with --port" in done.err


def test_an_address_of_another_machine_is_a_sentence(penstock: Penstock, app: str) -> None:
    done = penstock("serve", app, "--host", "192.0.2.1", "--port", "0")
    assert done.code == 1
    assert "--host needs an address of this machine" in done.err
    assert "running there" not in done.err


def test_each_missing_part_is_a_sentence(
    penstock: Penstock, app: str, blank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = penstock("serve", "nowhere:app", "--port", "0")
    assert (done.code, done.out) == (2, "")
    assert "no module nowhere" in done.err
    done = penstock("serve", "--worker", "--port", "0")
    assert done.code == 2
    assert "needs an APP" in done.err
    (tmp_path / "no_jobs.py").write_text("from penstock import Penstock\napp = Penstock()\n")
    done = penstock("serve", "no_jobs:app", "--worker", "--port", "0")
    assert done.code == 1
    assert "nothing for --worker" in done.err

    monkeypatch.delenv("PENSTOCK_SECRET")
    done = penstock("serve", app, "--port", "0")
    assert (done.code, done.out) == (1, "")
    assert "PENSTOCK_SECRET is not set" in done.err

    monkeypatch.setenv("PENSTOCK_SECRET", SECRET)
    monkeypatch.setenv("PENSTOCK_DSN", blank)
    module = app.partition(":")[0]
    for processes in ("1", "2"):
        # A new module each time: an app reads its settings once.
        (tmp_path / f"old_{processes}_{module}.py").write_text(
            (tmp_path / f"{module}.py").read_text()
        )
        named = f"old_{processes}_{module}:app"
        done = penstock("serve", named, "--port", "0", "--processes", processes)
        assert (done.code, done.out) == (1, "")
        assert "run `penstock migrate up`" in done.err


@pytest.mark.parametrize("command", ["serve", "worker", "dev", "status"])
@pytest.mark.parametrize("weak", ["changemechangeme", "a" * 16, "changeme" * 8])
def test_a_secret_that_can_be_guessed_is_refused(
    penstock: Penstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, weak: str
) -> None:
    """Every command refuses it, says how to make a good one, and does not show it."""
    name = f"weak_{command}_{len(weak)}_{weak[0]}"  # an app reads its settings once
    (tmp_path / f"{name}.py").write_text(SLOW)
    monkeypatch.setenv("PENSTOCK_SECRET", weak)
    words = [] if command == "status" else [f"{name}:app"]
    done = penstock(command, *words, *(["--port", "0"] if command in ("serve", "dev") else []))
    assert (done.code, done.out) == (1, "")
    assert "openssl rand -hex 32" in done.err
    assert weak not in done.err


def test_without_the_extra_it_says_what_to_install(
    penstock: Penstock, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import util

    found = util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *more: None if name == "starlette" else found(name, *more),
    )
    for command in ("serve", "dev"):
        done = penstock(command, app, "--port", "0")
        assert (done.code, done.out) == (1, "")
        assert "needs starlette" in done.err
        assert "pip install 'penstock[server]'" in done.err
