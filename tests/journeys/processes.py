"""The programs of an example, started as its users start them: processes that answer over HTTP."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import psycopg

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
START_SECONDS = 60
END_SECONDS = 30
POLL_SECONDS = 0.02
# Between two looks of somebody who waits: each takes time from those who work on it.
LOOK_SECONDS = 0.05


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Program:
    """`python -m ...` with the examples on its path; what it prints goes to a file."""

    def __init__(
        self,
        words: list[str],
        env: Mapping[str, str],
        log: Path,
        *,
        port: int | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.log = log
        self.words = words
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PENSTOCK_", "ESSAYS_", "MODEL_", "AI_SERVICE_"))
        }
        with log.open("ab") as output:
            self.popen = subprocess.Popen(
                [sys.executable, *words],
                env={**inherited, "PYTHONPATH": str(EXAMPLES), **env},
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
            )
        self.port = port
        self._asked = False

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    @property
    def printed(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_ready(self) -> None:
        """Return when it takes connections; one that ends instead is shown with what it said."""
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self.popen.poll() is None, f"{self.words} ended:\n{self.printed}"
            assert time.monotonic() < deadline, f"{self.words} does not answer:\n{self.printed}"
            time.sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        assert self.port
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """As a machine that loses power: no goodbye."""
        self.popen.kill()
        self.popen.wait(END_SECONDS)

    def ask_to_end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal, once: to most programs a second one means "at once"."""
        if not self._asked and self.popen.poll() is None:
            self._asked = True
            self.popen.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, as a supervisor does or as Ctrl-C, and wait; its exit code."""
        self.ask_to_end(number)
        try:
            return self.popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.words} does not end:\n{self.printed}") from None


def drain(dsn: str, programs: Iterable[Program]) -> None:
    """Between two tests with the same programs: no job waits or runs.

    What the queues think of their models is forgotten. Workers stay, unless they do not let go.
    """
    try:
        _empty(dsn)
    except AssertionError:
        end_workers(programs)
        raise


def _empty(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select penstock.cancel_job(id) from penstock.job")
        deadline = time.monotonic() + END_SECONDS
        while conn.execute("select from penstock.job").rowcount:
            assert time.monotonic() < deadline, "a job that was cancelled does not end"
            time.sleep(POLL_SECONDS)
            # A worker that was killed ends nothing, and there may be no other.
            conn.execute("select penstock.recover_jobs()")
        conn.execute("select penstock.close_circuit(name) from penstock.queue")


def end_workers(programs: Iterable[Program]) -> None:
    """Of all that run, only they have no port."""
    workers = [one for one in programs if one.port is None and one.is_running]
    for worker in workers:
        worker.ask_to_end()
    for worker in workers:
        worker.end()


def close_up(dsn: str, programs: Iterable[Program]) -> None:
    """Nothing in work and nobody at work; what one test could not end is not left to the next."""
    try:
        _empty(dsn)
    finally:
        end_workers(programs)
