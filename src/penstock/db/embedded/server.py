"""The server process of the embedded Postgres: whether it runs, starting it, stopping it.

It is nobody's child, so nobody can wait for it: what it does is read from its socket and from
/proc. Its own note of a process id is never believed alone, since numbers are used again.
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
"""How long a start may take: after a crash, up to 2 GB of WAL are replayed first."""
RETRY_SECONDS = 10
"""How long a start is tried again while the remains of the last server go away."""
STOP_SECONDS = 20
"""How long each step of a stop may take: 256 MB of buffers go to a slow disk in less."""
PROBE_SECONDS = 5
POLL_SECONDS = 0.005

LOG_DAYS = 7
LOG_BYTES = 16 * 2**20
"""A log file older or larger than these does not live to see the next start."""

SOCKET_FILE = ".s.PGSQL.5432"
SOCKET_PATH_BYTES = 103
"""The shortest limit of the systems we run on (macOS; Linux has 107)."""


class State(Enum):
    """What a knock at the server's door finds out."""

    READY = "accepts connections"
    NOT_READY = "starts, recovers or stops"
    DOWN = "nobody listens"


class Server:
    """The server of one home. Whoever makes one holds the home's lock.change, also to stop it."""

    def __init__(self, home: Path) -> None:
        """Find out who runs it and make the folders it needs beside its data."""
        self.home = home
        self.data = home / "postgres"
        self.user = ServerUser.of(home)
        self.log = self.user.folder(home / "log")
        self.socket = self.user.folder(_socket_home(home) / "socket")

    def start(self, bin_dir: Path | None, settings: Mapping[str, str]) -> None:
        """Return when the server answers, whether it ran already or not."""
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
            # A long recovery is not asked often: each question leaves a line in the log.
            time.sleep(POLL_SECONDS if waited < 1 else 20 * POLL_SECONDS)

    def stop(self) -> None:
        """Stop the server in an orderly way; return when its data is at rest."""
        pid = self._postmaster()
        # Asked to stop while it recovers from the crash of a backend, Postgres 18 waits for ever
        # for processes it forgot to tell. So it is asked when it has recovered; and where that
        # came too late, or a disk is very slow, the next start recovers what was committed.
        _wait(lambda: not pid or self._state() is not State.NOT_READY)
        for name in ("INT", "QUIT"):  # "Fast" ends open sessions; "immediate" writes no checkpoint.
            if pid and _alive(pid):
                self._signal(name, {pid})
                _wait(lambda: not _alive(pid))
        if self.socket.parent != self.home:
            with suppress(OSError):
                self.socket.rmdir()
                self.socket.parent.rmdir()

    def _launch(self, binaries: Binaries) -> tuple[int, str]:
        """Start the server as nobody's child: its process id, and what the shell complained of.

        As our child it would stay a zombie when somebody else stops it, and would end with us
        where a supervisor ends whole families of processes.
        """
        for file in self.log.glob("*.log"):
            status = file.stat()
            old = status.st_mtime < time.time() - LOG_DAYS * 86400
            # Files of a user it ran as earlier could not be written to.
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
        """Knock, in the protocol of Postgres: the only test that cannot be out of date."""
        words = f"user\0{ROLE}\0database\0{DATABASE}\0\0".encode()
        answer = b""
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(PROBE_SECONDS)
            try:
                door.connect(str(self.socket / SOCKET_FILE))
                door.sendall((len(words) + 8).to_bytes(4) + (3 << 16).to_bytes(4) + words)
                # Read to the end of the greeting: hanging up earlier would be logged as trouble.
                while not answer.endswith(b"Z\0\0\0\5I") and (part := door.recv(8192)):
                    answer += part
                door.sendall(b"X\0\0\0\4")
            except (TimeoutError, BlockingIOError):  # Too many connect at once.
                return State.NOT_READY
            except OSError:
                pass  # What was answered before that tells.
        if not answer:
            return State.DOWN
        # 57P03 is "cannot connect now". Any other refusal comes from a server that is up.
        return State.NOT_READY if answer[:1] == b"E" and b"C57P03\0" in answer else State.READY

    def _vacant(self) -> bool:
        """Whether nothing of an earlier server is left in the data; help it out if it is dying."""
        inside = postgres_in(self.data, self.user)
        if inside is None:  # No way to know on this system: Postgres itself looks, and refuses.
            return True
        if not inside:
            # Its lock files name a process that is gone. Postgres would believe them if another
            # process has the number by now, as happens when a container is started again.
            for path in (self.data / "postmaster.pid", self.socket / f"{SOCKET_FILE}.lock"):
                path.unlink(missing_ok=True)
            return True
        if pid := self._postmaster():
            if self._reports_ready() and not (self.socket / SOCKET_FILE).exists():
                raise EmbeddedFailed(
                    f"The embedded Postgres in {self.data} runs (process {pid}), but its socket in "
                    f"{self.socket} is gone: stop it with `kill -INT {pid}` and try again."
                )
            return False
        # The postmaster was killed and left backends behind; those at work would go on writing.
        self._signal("QUIT", inside)
        return False

    def _signal(self, name: str, pids: set[int]) -> None:
        # As its own user: root may lack the right to signal others in a container.
        self.user.run(["/bin/sh", "-c", 'kill -s "$0" "$@"', name, *map(str, pids)])

    def _postmaster(self) -> int:
        """Process id of the running postmaster, or 0."""
        try:
            # A server in single-user mode notes its number with a minus.
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
                f"PENSTOCK_HOME; or move {self.data} away to begin with an empty database."
            )

    def _last_words(self) -> str:
        """What the latest start wrote: to its own file, and to the log once that was open."""
        started = self.log / "start.log"
        if not started.exists():
            return ""
        words = started.read_text(errors="replace")
        logs = [file for file in self.log.glob("postgres-*.log") if file.stat().st_size]
        latest = max(logs, key=lambda file: file.stat().st_mtime, default=started)
        if "redirecting log output" in words:
            words = latest.read_text(errors="replace")
            words = words[max(words.rfind("LOG:  starting PostgreSQL"), 0) :]
        # Our own knocking while it was not ready would hide what matters.
        return re.sub(r".*FATAL:  the database system is .*\n", "", words)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _may_pass(report: str) -> bool:
    """Whether a failed start may go well a moment later.

    It may if the last server was not quite gone, or if this one gave no reason: it was killed.
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
        pass  # It is there.
    try:
        # A zombie is dead; where process 1 does not collect them it stays to be seen.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True  # A system that does not tell.


def postgres_in(data: Path, user: ServerUser) -> set[int] | None:
    """Processes of Postgres at work in a data folder; None on a system that does not tell.

    Each has the data as its working folder, which tells it from any other that has its number.
    Asked as its own user: in a container root may not look into the processes of others.
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
    """Home itself; or, if a client cannot name a socket there, a folder in /tmp made for it.

    In /tmp wherever TMPDIR points, since all users must arrive at the same folder.
    """
    path = os.fsencode(home / "socket" / SOCKET_FILE)
    # Drivers take a comma for a list of hosts; other odd characters are not worth a try.
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
            "would hold it instead, belongs to someone else or is open to others: remove it, or "
            "set PENSTOCK_HOME to a shorter path."
        )
    return folder
