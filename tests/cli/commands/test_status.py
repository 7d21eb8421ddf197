"""`status`, `workers`, `top`, `prune`."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time

import psycopg
import pytest

from support.shapes import Penstock


def test_the_status_is_totals_queues_and_workers(
    penstock: Penstock, db: psycopg.Connection
) -> None:
    """M15, E11"""
    for _ in range(3):
        db.execute("select penstock.submit_job('model', '{}')")
    row = db.execute("select penstock.register_worker('host-7')").fetchone()
    assert row
    db.execute("select penstock.claim_jobs(%s, 'model', 1)", [row[0]])
    done = penstock("status")
    assert (done.code, done.err) == (0, "")
    totals, queues, workers = done.out.split("\n\n")
    assert totals == (
        "2 queued · 1 running · 0 scheduled · 0 failed today · no job has succeeded yet"
    )
    assert queues.splitlines()[1].split()[:4] == ["model", "ready", "2", "1"]
    assert workers.splitlines()[1].split()[:3] == ["host-7", "alive", "1"]
    answer = json.loads(penstock("status", "--json").out)
    assert (answer["pending"], answer["processing"], answer["failed_today"]) == (2, 1, 0)
    assert answer["avg_processing_seconds"] is None
    assert answer["workers"][0]["alive"] is True

    frame = penstock("top", "--once")
    assert frame.out.startswith(totals)
    assert frame.out.split("\n\n")[3].splitlines()[1].split()[1] == "running"
    assert penstock("top").out.splitlines()[0] == totals, "a pipe gets the status once"
    assert len(json.loads(penstock("top", "--json").out)["jobs"]) == 1


def test_workers_are_alive_silent_or_lost(penstock: Penstock, db: psycopg.Connection) -> None:
    """E6"""
    assert penstock("workers").out == "No workers: `penstock worker APP` starts one.\n"
    assert penstock("workers", "--json").out == "[]\n"
    db.execute("select penstock.register_worker('silent', '1 microsecond')")
    db.execute("select penstock.register_worker('lost', '1 microsecond')")
    db.execute("update penstock.worker set lost_at = penstock.clock() where name = 'lost'")
    db.execute("select penstock.register_worker('alive')")
    head, *rows = [line.split()[:2] for line in penstock("workers").out.splitlines()]
    assert head == ["WORKER", "STATE"]
    assert rows == [["alive", "alive"], ["lost", "lost"], ["silent", "silent"]]
    db.execute(
        "select penstock.report_blocked_loop(id, 1, 9, false) from penstock.worker"
        " where name = 'alive'"
    )
    assert penstock("workers").out.splitlines()[1].split()[:2] == ["alive", "blocked"]
    assert len(json.loads(penstock("workers", "--json").out)) == 3


def test_prune_removes_jobs_that_are_older_than_their_retention(
    penstock: Penstock, db: psycopg.Connection
) -> None:
    """M14"""
    assert penstock("prune").out == "Nothing is older than its retention.\n"
    db.execute("select penstock.submit_job('model', '{}')")
    db.execute("select penstock.cancel_job(id) from penstock.job")
    db.execute("update penstock.test_clock set moved = '60 days'")
    done = penstock("prune")
    assert done.code == 0
    assert re.match(r"Removed \d+ partitions of history and 0 rows\.", done.out)
    assert db.execute("select from penstock.finished").rowcount == 0
    assert json.loads(penstock("prune", "--json").out) == {"partitions": [], "rows": 0}


class Terminal:
    """A command on its own terminal, 80 columns wide."""

    def __init__(self, *words: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(slave)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def until(self, text: str, *, seconds: float = 20) -> str:
        """Return the output up to this text, without colours."""
        seen, deadline = b"", time.monotonic() + seconds
        while text not in self.plain(seen):
            assert time.monotonic() < deadline, f"{text} does not come: {self.plain(seen)}"
            seen += os.read(self._master, 65536)
        return self.plain(seen)

    def rest(self) -> bytes:
        seen = b""
        while True:
            try:
                seen += os.read(self._master, 65536)
            except OSError:  # the other side is closed
                return seen

    def code(self) -> int:
        code = self._process.wait(20)
        os.close(self._master)
        return code

    @staticmethod
    def plain(seen: bytes) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode(errors="replace"))


def test_on_a_terminal_tables_fit_and_have_colours(db: psycopg.Connection) -> None:
    db.execute("select penstock.submit_job('model', '{}', account => %s)", ["u" * 100])
    terminal = Terminal("jobs")
    seen = terminal.rest()
    assert terminal.code() == 0
    assert b"\x1b[36mqueued" in seen
    lines = Terminal.plain(seen).splitlines()
    assert len(lines) == 2
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.usefixtures("db")
@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
def test_top_ends_with_a_key(key: bytes) -> None:
    terminal = Terminal("top")
    assert "0 queued" in terminal.until("No workers")
    if key == b"\x03":
        terminal.interrupt()
    else:
        terminal.press(key)
    terminal.rest()
    assert terminal.code() == 0
