"""The server process of the embedded Postgres: its state, starting it, stopping it.

The server is not a child of this process, so its end cannot be awaited: its state is read from its
socket and from /proc. The process id in its file is always checked, because ids are reused.
"""

import hashlib
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path

from penstock.db.embedded.files import (
    DATABASE,
    ROLE,
    Binaries,
    clear_unfinished,
    failed,
    make_cluster,
    write_settings,
)
from penstock.db.embedded.server_user import ServerUser
from penstock.errors import EmbeddedFailed

START_SECONDS = 120
"""How long starting may take: after a crash, up to 2 GB of WAL are replayed first."""
RETRY_SECONDS = 10
"""How long to retry starting while processes of the last server still end."""
STOP_SECONDS = 20
"""How long each step of stopping may take: enough to write 256 MB of buffers to a slow disk."""
PROBE_SECONDS = 5
POLL_SECONDS = 0.005

LOG_DAYS = 7
LOG_BYTES = 16 * 2**20
"""A log file that is older or larger is deleted before the server is started."""

SOCKET_FILE = ".s.PGSQL.5432"
SOCKET_PATH_BYTES = 103
"""The shortest limit of the supported systems (macOS; Linux has 107)."""


class State(Enum):
    """The state of the server, as a connection to its socket shows it."""

    READY = "accepts connections"
    NOT_READY = "starts, recovers or stops"
    DOWN = "nobody listens"


class Server:
    """The server of one home. The caller must hold lock.change of the home, also for `stop`."""

    def __init__(self, home: Path) -> None:
        """Determine the server's user and create the folders that it needs beside its data."""
        self.home = home
        self.data = home / "postgres"
        self.user = ServerUser.of(home)
        self.log = self.user.folder(home / "log")
        self.socket = self.user.folder(_socket_home(home) / "socket")

    def start(self, bin_dir: Path | None, settings: Mapping[str, str]) -> None:
        """Start the server unless it runs; return when it answers."""
        if self._state() is State.READY:
            return
        binaries = Binaries.find(bin_dir, self.user)
        clear_unfinished(self.home)
        if not (self.data / "PG_VERSION").exists():
            make_cluster(self.home, binaries, self.user)
        self._refuse_other_version(binaries)
        begun, pid, complaint = time.monotonic(), 0, ""
        while (state := self._state()) is not State.READY:
            waited = time.monotonic() - begun
            if waited > START_SECONDS:
                raise failed(
                    f"The embedded Postgres in {self.data} is not ready after {START_SECONDS} s; "
                    "it may still be recovering from a crash, so try again in a while",
                    self._last_words(),
                )
            if state is State.DOWN and not (pid and _alive(pid)):
                report = complaint + self._last_words()
                if pid and not (waited < RETRY_SECONDS and _may_pass(report)):
                    raise failed(f"The embedded Postgres in {self.data} does not start", report)
                if self._vacant():
                    write_settings(self.data, settings, self.user)
                    pid, complaint = self._launch(binaries)
            # Poll a long recovery less often: each connection leaves a line in the log.
            time.sleep(POLL_SECONDS if waited < 1 else 20 * POLL_SECONDS)

    def stop(self) -> None:
        """Stop the server in an orderly way; return when it has exited."""
        pid = self._postmaster()
        # If Postgres 18 is asked to stop while it recovers from the crash of a backend, it waits
        # for ever for processes that it forgot to signal. So it is asked after the recovery. If
        # that is too late, or the disk is very slow, the next server recovers all commits.
        _wait(lambda: not pid or self._state() is not State.NOT_READY)
        for name in ("INT", "QUIT"):  # "Fast" ends sessions; "immediate" writes no checkpoint.
            if pid and _alive(pid):
                self._signal(name, {pid})
                _wait(lambda: not _alive(pid))
        if self.socket.parent != self.home:
            with suppress(OSError):
                self.socket.rmdir()
                self.socket.parent.rmdir()

    def _launch(self, binaries: Binaries) -> tuple[int, str]:
        """Start the server detached; return its process id and the shell's error output.

        A child of this process would stay a zombie when another process stops it, and would be
        killed with this process by a supervisor that kills whole process groups.
        """
        for file in self.log.glob("*.log"):
            status = file.stat()
            old = status.st_mtime < time.time() - LOG_DAYS * 86400
            # The server could not write to files of another user that it ran as earlier.
            if old or status.st_size > LOG_BYTES or status.st_uid != self.user.uid:
                file.unlink()
        with self.user.entering(self.data, self.log, self.socket) as ((data, log, door), fds):
            script = '"$@" </dev/null >"$0/start.log" 2>&1 & echo $!'
            server = [str(binaries.folder / "postgres"), "-D", data]
            server += ["-c", f"log_directory={log}", "-c", f"unix_socket_directories={door}"]
            shell = self.user.run(["/bin/sh", "-c", script, log, *server], fds=fds)
        if not shell.stdout:
            raise failed(f"The embedded Postgres in {self.data} does not start", shell.stderr)
        return int(shell.stdout), shell.stderr

    def _state(self) -> State:
        """Connect in the protocol of Postgres: the only check that is never outdated."""
        words = f"user\0{ROLE}\0database\0{DATABASE}\0\0".encode()
        answer = b""
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(PROBE_SECONDS)
            try:
                door.connect(str(self.socket / SOCKET_FILE))
                door.sendall((len(words) + 8).to_bytes(4) + (3 << 16).to_bytes(4) + words)
                # Read the whole greeting: closing earlier would be logged as an error.
                while not answer.endswith(b"Z\0\0\0\5I") and (part := door.recv(8192)):
                    answer += part
                door.sendall(b"X\0\0\0\4")
            except (TimeoutError, BlockingIOError):  # Too many connect at once.
                return State.NOT_READY
            except OSError:
                pass  # The answer received so far decides.
        if not answer:
            return State.DOWN
        # 57P03 is "cannot connect now". Any other refusal comes from a server that is up.
        return State.NOT_READY if answer[:1] == b"E" and b"C57P03\0" in answer else State.READY

    def _vacant(self) -> bool:
        """Return whether no process of an earlier server is left; end its remaining backends."""
        inside = postgres_in(self.data, self.user)
        if inside is None:  # Unknown on this system: Postgres itself checks, and refuses.
            return True
        if not inside:
            # Its lock files name a process that no longer exists. Postgres would believe them if
            # another process has that id now, as happens when a container is restarted.
            for path in (self.data / "postmaster.pid", self.socket / f"{SOCKET_FILE}.lock"):
                path.unlink(missing_ok=True)
            return True
        if pid := self._postmaster():
            if self._reports_ready() and not (self.socket / SOCKET_FILE).exists():
                raise EmbeddedFailed(
                    f"The embedded Postgres in {self.data} runs (process {pid}), but its socket in "
                    f"{self.socket} is missing: stop it with `kill -INT {pid}` and try again."
                )
            return False
        # The postmaster was killed and backends are left; busy ones would continue to write.
        self._signal("QUIT", inside)
        return False

    def _signal(self, name: str, pids: set[int]) -> None:
        # Run as the server's user: in a container root may lack the right to signal other users.
        self.user.run(["/bin/sh", "-c", 'kill -s "$0" "$@"', name, *map(str, pids)])

    def _postmaster(self) -> int:
        """Return the process id of the running postmaster, or 0."""
        try:
            # A server in single-user mode writes its id with a minus.
            pid = abs(int((self.data / "postmaster.pid").read_text().split()[0]))
        except (OSError, ValueError, IndexError):
            return 0
        inside = postgres_in(self.data, self.user)
        return pid if _alive(pid) and (inside is None or pid in inside) else 0

    def _reports_ready(self) -> bool:
        with suppress(OSError):
            return (self.data / "postmaster.pid").read_text().rstrip().endswith("ready")
        return False

    def _refuse_other_version(self, binaries: Binaries) -> None:
        written_by = (self.data / "PG_VERSION").read_text().strip()
        if written_by != str(binaries.major):
            raise EmbeddedFailed(
                f"The data in {self.data} was written by Postgres {written_by}; the binaries in "
                f"{binaries.folder} are Postgres {binaries.major} and cannot read it. Start it "
                f"with Postgres {written_by}, dump it with pg_dump and restore it into a new "
                f"PENSTOCK_HOME; or move {self.data} to begin with an empty database."
            )

    def _last_words(self) -> str:
        """Return the output of the latest server: from start.log, or from the log if opened."""
        started = self.log / "start.log"
        if not started.exists():
            return ""
        words = started.read_text(errors="replace")
        logs = [file for file in self.log.glob("postgres-*.log") if file.stat().st_size]
        latest = max(logs, key=lambda file: file.stat().st_mtime, default=started)
        if "redirecting log output" in words:
            words = latest.read_text(errors="replace")
            words = words[max(words.rfind("LOG:  starting PostgreSQL"), 0) :]
        # Remove the lines that our own connections caused while the server was not ready.
        return re.sub(r".*FATAL:  the database system is .*\n", "", words)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _may_pass(report: str) -> bool:
    """Return whether starting may succeed a moment later.

    It may if the last server had not ended completely, or if this one was killed, without a report.
    """
    complaints = [line for line in report.splitlines() if line and "LOG:  " not in line]
    transient = re.compile(r"is still in use|lock file .* already exists")
    return not complaints or any(map(transient.search, complaints))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # The process exists.
    try:
        # A zombie has exited; it remains visible if process 1 does not reap it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True  # The system has no /proc.


def postgres_in(data: Path, user: ServerUser) -> set[int] | None:
    """Return the Postgres processes of a data folder; None on a system without /proc.

    Each one has the data as its working folder, which distinguishes it from other processes with a
    reused id. The check runs as the server's user: in a container root may not read the /proc
    entries of other users.
    """
    if not Path("/proc/self/cwd").exists():
        return None
    script = """
        for process in /proc/[0-9]*; do
          [ "$process/cwd" -ef "$0" ] && read -r name <"$process/comm" &&
            [ "$name" = postgres ] && echo "${process#/proc/}"
        done 2>/dev/null
    """
    with user.entering(data) as ((inside,), fds):
        listed = user.run(["/bin/sh", "-c", script, inside], fds=fds)
    return set(map(int, listed.stdout.split()))


def _socket_home(home: Path) -> Path:
    """Return home, or a folder in /tmp if clients cannot use a socket with the path of home.

    Always in /tmp, even if TMPDIR is set: all processes must find the same folder.
    """
    path = os.fsencode(home / "socket" / SOCKET_FILE)
    # Drivers read a comma as a list of hosts; other unusual characters are avoided, too.
    if len(path) <= SOCKET_PATH_BYTES and not re.search(rb"[^\w./ +~@-]", path):
        return home
    owner = home.stat()
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    folder = Path("/tmp", f"penstock-{owner.st_uid}-{name}")  # noqa: S108 - checked below
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        os.chown(folder, owner.st_uid, owner.st_gid)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != owner.st_uid or status.st_mode & 0o077:
        raise EmbeddedFailed(
            f"The path of {home} is too long or too unusual for a socket, and {folder}, which "
            "would hold the socket instead, belongs to another user or is open to others: remove "
            "it, or set PENSTOCK_HOME to a shorter path."
        )
    return folder
