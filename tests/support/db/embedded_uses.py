"""Using the embedded Postgres from tests: other processes and users, and checks of its home."""

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest

from penstock.db.embedded.database import Embedded
from penstock.db.embedded.files import Binaries
from penstock.db.embedded.server import postgres_in
from penstock.db.embedded.server_user import ServerUser
from penstock.errors import EmbeddedFailed

# A runner that has a thread makes newer Pythons warn of each fork.
quiet_forks = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

DEADLINE_SECONDS = 20
QUICK = {"fsync": "off"}
ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root can become another user or mount")

USE = """
import sys
from pathlib import Path
from penstock.db.embedded.database import Embedded
use = Embedded.use(Path(sys.argv[1]), settings={"fsync": "off"})
print(use.dsn, flush=True)
sys.stdin.read()
"""  # Leaves at exit.


class Process:
    """Another process that uses the server until it is stopped."""

    def __init__(self, home: Path) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", USE, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def dsn(self) -> str:
        assert self.popen.stdout
        return self.popen.stdout.readline().strip()

    def leave(self) -> None:
        self.popen.communicate(timeout=DEADLINE_SECONDS)
        assert self.popen.returncode == 0

    def kill(self) -> None:
        self.popen.kill()
        self.popen.communicate()


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"still waiting: {what}"
        time.sleep(0.001)


def postmaster(home: Path) -> int:
    return int((home / "postgres" / "postmaster.pid").read_text().split()[0])


def runs(home: Path) -> bool:
    return (home / "postgres").exists() and bool(
        postgres_in(home / "postgres", ServerUser.of(home))
    )


def stopped(home: Path) -> bool:
    return not runs(home)


def ask(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(statement.encode()).fetchone()
    return row and row[0]


def do(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(statement.encode())


def log_of(home: Path) -> str:
    return "".join(file.read_text() for file in (home / "log").iterdir())


def starts(home: Path) -> int:
    return log_of(home).count("starting PostgreSQL")


def end_servers(under: Path) -> None:
    """Leave nothing behind, even if a test failed half-way."""
    for data in under.rglob("postgres"):
        if (data / "PG_VERSION").exists():
            for pid in postgres_in(data, ServerUser.of(data.parent)) or ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_for(partial(stopped, data.parent), "the end of a server")


def put(data: Path, home: Path) -> None:
    home.mkdir()
    subprocess.run(["cp", "-a", str(data), str(home)], check=True)


def failure(home: Path, **options: Path) -> str:
    with pytest.raises(EmbeddedFailed) as caught:
        Embedded.use(home, settings=QUICK, **options)
    assert not runs(home)
    return str(caught.value)


@contextmanager
def nobody_using(home: Path) -> Iterator[tuple[int, str]]:
    """A process of the user `nobody` that uses `home`: its id and what `use` returned, or raised.

    Forked and not started with exec, since `nobody` may not be able to reach the interpreter.
    """
    nobody = pwd.getpwnam("nobody")
    # It may not reach the binaries either; then root's copy of them is used.
    reachable = Binaries.find(None, ServerUser(nobody.pw_uid, nobody.pw_gid, lent=True)).folder
    answer_out, answer_in = os.pipe()
    hold_out, hold_in = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(hold_in)
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
            try:
                use = Embedded.use(home, bin_dir=reachable, settings=QUICK)
            except EmbeddedFailed as error:
                os.write(answer_in, str(error).encode())
                os._exit(3)
            os.write(answer_in, use.dsn.encode())
            os.read(hold_out, 1)
            use.leave()
        except BaseException as error:  # noqa: BLE001
            os.write(answer_in, repr(error).encode())
            os._exit(1)
        os._exit(0)
    os.close(answer_in)
    os.close(hold_out)
    try:
        yield child, os.read(answer_out, 65536).decode()
    finally:
        os.close(hold_in)
        os.close(answer_out)
        os.waitpid(child, 0)
