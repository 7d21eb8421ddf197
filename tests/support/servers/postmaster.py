"""A Postgres of one test as a child process on a TCP port: killed, paused, copied, promoted.

The embedded one is not used: it is not a child process, has no port, and supports no standby. This
one may run in a network namespace, under another clock, or under strace: `prefix` sets that. All of
it blocks; asyncio callers use a thread.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from penstock.db.embedded.files import Binaries
from penstock.db.embedded.server import postgres_in
from penstock.db.embedded.server_user import ServerUser

ROLE = "owner"
START_SECONDS = 60.0
POLL_SECONDS = 0.01

# As users have it, acknowledged commits are on the disk. But nothing here waits longer for a disk
# than a server that has its own.
DURABLE = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "recovery_init_sync_method": "syncfs",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "wal_level": "replica",
    "hot_standby": "on",
    "unix_socket_directories": "",
    "log_min_messages": "log",
}


@contextmanager
def room() -> Iterator[Path]:
    """A folder for servers, which their user can reach; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-fire-"))
    ServerUser.of(folder).own(folder)
    try:
        yield folder
    finally:
        for data in folder.rglob("postgres"):
            for pid in postgres_in(data, ServerUser.of(data.parent)) or ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


class Postmaster:
    """One data folder and, most of the time, a server in it."""

    def __init__(
        self,
        folder: Path,
        port: int,
        *,
        host: str = "127.0.0.1",
        settings: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`prefix`: the command that starts the server, like `ip netns exec a`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.data = folder / "postgres"
        self.host, self.port = host, port
        self.settings = {**DURABLE, **(settings or {})}
        self.prefix = list(prefix)
        self.environment = dict(environment or {})
        self.log = folder / "postgres.log"
        self._user = ServerUser.of(folder)
        self._user.own(folder)
        self._binaries = Binaries.find(None, self._user).folder
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """For its owner, a superuser."""
        return f"postgresql://{ROLE}@{self.host}:{self.port}/postgres"

    @property
    def pid(self) -> int:
        assert self._child
        return self._child.pid

    @property
    def runs(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def make(self) -> "Postmaster":
        """A new cluster, open to all addresses of this machine."""
        self._run("initdb", "-D", self.data, "-U", ROLE, "-A", "trust", "-E", "UTF8", "--no-sync")
        with (self.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all all trust\nhost replication all all trust\n")
        return self

    def copy_of(self, primary: "Postmaster", name: str) -> "Postmaster":
        """A standby of a running server, which knows it by this name."""
        self._run(
            "pg_basebackup", "-D", self.data, "-d", f"{primary.dsn}?application_name={name}",
            "-R", "-X", "stream", "-c", "fast", "--no-sync",
        )  # fmt: skip
        return self

    def start(self, *, wait: bool = True) -> "Postmaster":
        """Return when it accepts connections; a standby accepts readers."""
        settings = {
            **self.settings,
            "listen_addresses": self.host,
            "port": str(self.port),
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        # Root starts it as another user, after the prefix, which may need root.
        become = ["setpriv", f"--reuid={self._user.uid}", f"--regid={self._user.gid}"]
        become = [*become, "--clear-groups"] if self._user.lent else []
        # Its own environment: libraries preloaded into it must not be preloaded into root's
        # commands.
        given = ["env", *(f"{name}={value}" for name, value in self.environment.items())]
        words = [str(self._binaries / "postgres"), "-D", str(self.data)]
        command = [*self.prefix, *become, *given, *words]
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        if wait:
            self.await_ready()
        return self

    def await_ready(self) -> None:
        """Read its own status file: a test connection would need a route, and would be one more."""
        ends = time.monotonic() + START_SECONDS
        while self._status() != "ready":
            assert self.runs, f"it has exited: {self.log.read_text()[-2000:]}"
            assert time.monotonic() < ends, f"it does not start: {self.log.read_text()[-2000:]}"
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """Kill the postmaster and its backends without notice; return when all are gone."""
        if self._child is None:
            return
        for pid in (self._child.pid, *self.processes()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._child.wait()
        while left := self.processes():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop it properly."""
        if self.runs:
            os.kill(self._postmaster(), signal.SIGINT)
            assert self._child
            self._child.wait(START_SECONDS)

    def pause(self, *pids: int) -> None:
        """Freeze these of its processes, by default all: it neither answers nor dies."""
        for pid in pids or self.processes():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGCONT)

    def promote(self) -> None:
        """Promote a standby to primary; return when it accepts writes."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute("select pg_promote(true)")

    def processes(self) -> set[int]:
        """The postmaster and all its children."""
        return postgres_in(self.data, self._user) or set()

    def remove(self) -> None:
        """Remove the server and its data."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def _postmaster(self) -> int:
        """The server's process, which may be a child of the prefix that was started."""
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def _status(self) -> str:
        with suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            # The last line of eight; a standby that accepts readers writes it there, too.
            return lines[7].strip() if len(lines) > 7 else ""
        return ""

    def _run(self, program: str, *words: object) -> None:
        done = self._user.run([self._binaries / program, *map(str, words)])
        assert done.returncode == 0, done.stderr
