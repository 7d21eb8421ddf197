"""The embedded Postgres: a real server under PENSTOCK_HOME, for whoever gave no PENSTOCK_DSN.

    home/postgres      the data, made by initdb in a folder beside it and renamed when whole
    home/socket        the only door (or in /tmp, where the way to home is too long for a socket)
    home/log           start.log, and one file per weekday
    home/lock.change   held alone while somebody starts or stops the server
    home/lock.users    held in common by everyone who uses it

The first user starts the server, everyone else finds it, the last to leave stops it:

    use     takes lock.change, shares lock.users, starts the server if it does not answer
    leave   gives lock.users back, takes lock.change, and stops the server if lock.users is free

The kernel gives back the locks of a process that dies, so a crash leaves no count to repair. The
server is nobody's child: it outlives a starter that was killed, and the next user finds it.
"""

import atexit
import errno
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

from penstock.db.embedded.files import DATABASE, ROLE, SUPERUSER
from penstock.db.embedded.server import POLL_SECONDS, START_SECONDS, STOP_SECONDS, Server
from penstock.db.embedded.server_user import ServerUser
from penstock.errors import EmbeddedFailed

LOCK_SECONDS = START_SECONDS + 3 * STOP_SECONDS
"""How long to wait for another process that starts or stops the server."""


class Embedded(AbstractContextManager["Embedded"]):
    """One use of the embedded server: `dsn` works until `leave`, or the end of a `with` block.

    Blocks while the server starts or stops; asyncio callers run it in a thread.
    """

    home: Path
    dsn: str
    """Address for the plain role that owns the database; never a superuser."""
    admin_dsn: str
    """Address for the superuser, for looking inside; Penstock itself does not use it."""

    @classmethod
    def use(
        cls,
        home: Path,
        *,
        bin_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        """Find the server of `home`, or make and start it.

        `bin_dir` names other binaries than the wheel's. `settings` override ours in
        postgresql.conf; they count for who starts the server, not for who finds it running.
        """
        with _explained(home):
            return cls(home.resolve(), bin_dir, settings or {})

    def __init__(self, home: Path, bin_dir: Path | None, settings: Mapping[str, str]) -> None:
        """Use `Embedded.use`, which turns what goes wrong here into sentences."""
        self.home = home
        make_home(home)
        with _locked(home / "lock.change"):
            self._server = Server(home)
            door = f"host={quote(str(self._server.socket))}&port=5432"
            self.dsn = f"postgresql://{ROLE}@/{DATABASE}?{door}"
            self.admin_dsn = f"postgresql://{SUPERUSER}@/{DATABASE}?{door}"
            self._users: int | None = _open_lock(home / "lock.users")
            try:
                fcntl.flock(self._users, fcntl.LOCK_SH)
                self._server.start(bin_dir, settings)
            except BaseException:
                _unlock(self._users)
                raise
            _in_use.add(self)

    def leave(self) -> None:
        """End this use; the last one stops the server. A second call does nothing."""
        if self._users is None:
            return
        _in_use.discard(self)
        _unlock(self._users)
        self._users = None
        # Somebody may have removed the whole folder; its server then ends by itself.
        with _explained(self.home), suppress(FileNotFoundError), _locked(self.home / "lock.change"):
            users = _open_lock(self.home / "lock.users")
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._server.stop()
            except BlockingIOError:
                pass  # Others still use it.
            finally:
                _unlock(users)

    def __exit__(self, *_error: object) -> None:
        self.leave()


_in_use: set[Embedded] = set()


def _leave_at_exit() -> None:
    for use in list(_in_use):
        with suppress(EmbeddedFailed):
            use.leave()


def _forget_in_child() -> None:
    # A forked child shares its parent's locks. It closes its copies, which leaves the lock with
    # the parent, and holds no use it could end: only a `use` of its own counts.
    for use in _in_use:
        if use._users is not None:  # noqa: SLF001
            os.close(use._users)  # noqa: SLF001
            use._users = None  # noqa: SLF001
    _in_use.clear()


atexit.register(_leave_at_exit)
os.register_at_fork(after_in_child=_forget_in_child)


def make_home(home: Path) -> None:
    """The folder of a database and its secret, which no repository takes in by accident."""
    try:
        home.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        if not home.is_dir():
            raise
    else:
        # Only in a folder of our own: in somebody's project it would hide the project from git.
        (home / ".gitignore").write_text("*\n")


def _open_lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if os.geteuid() == 0:  # For root in someone's home: they must be able to open it tomorrow.
        owner = path.parent.stat()
        os.fchown(fd, owner.st_uid, owner.st_gid)
    return fd


def _unlock(fd: int) -> None:
    # Closing alone would not do: a child forked meanwhile has a copy and would keep the lock.
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = _open_lock(path)
    deadline = time.monotonic() + LOCK_SECONDS
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EmbeddedFailed(
                        f"Another process has held {path} for {LOCK_SECONDS} s, starting or "
                        "stopping the embedded Postgres: find it with `fuser` and end it."
                    ) from None
            time.sleep(POLL_SECONDS)
        yield
    finally:
        _unlock(fd)


@contextmanager
def _explained(home: Path) -> Iterator[None]:
    """Turn an error of the operating system into a sentence that says what to do."""
    try:
        yield
    except OSError as error:
        path = error.filename or home
        elsewhere = "set PENSTOCK_HOME to a folder elsewhere"
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                reason = f"There is no room left for {path}: make room, or {elsewhere}."
            case errno.EROFS:
                reason = f"{path} is on a read-only file system: {elsewhere}."
            case errno.EACCES | errno.EPERM:
                name = ServerUser(os.geteuid(), os.getegid(), lent=False)
                reason = (
                    f"{name} may not write {path}: run as the user it belongs to, change its "
                    f"permissions, or {elsewhere}."
                )
            case errno.ENOTDIR | errno.EEXIST:
                reason = f"{path} is a file where a folder is needed: move it away, or {elsewhere}."
            case _:
                reason = f"{error.strerror or error} ({path}): {elsewhere}."
        raise EmbeddedFailed(f"The embedded Postgres cannot use {home}. {reason}") from error
