"""The operating system user of the embedded Postgres, which refuses to run as root.

Root runs it as another user. That user needs no access to the folders above the data: root opens
the data folders and passes the descriptors, and Postgres uses them as `/proc/self/fd/N`, which the
kernel resolves without checking the folders above. So the data stays under PENSTOCK_HOME, also
below a closed `/root`, no other user has access, and no permission of a folder is changed.
"""

import errno
import os
import pwd
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import EmbeddedFailed


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The user of the server process: the current one, or another one (`lent`) for root."""

    uid: int
    gid: int
    lent: bool

    @classmethod
    def of(cls, home: Path) -> "ServerUser":
        """Choose the owner of the data, else of the home, else `postgres`, else `nobody`.

        An existing owner comes first, so that the choice never changes for existing data, and so
        that `sudo` in a user's project leaves no files that the user cannot access.
        """
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid(), lent=False)
        for folder in (home / "postgres", home):
            if folder.exists() and (status := folder.stat()).st_uid != 0:
                return cls(status.st_uid, status.st_gid, lent=True)
        for name in ("postgres", "nobody"):
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(entry.pw_uid, entry.pw_gid, lent=True)
        raise EmbeddedFailed(
            "Postgres does not run as root, and neither a user `postgres` nor `nobody` exists: add "
            "one, run as an ordinary user, or set PENSTOCK_DSN to a server."
        )

    def __str__(self) -> str:
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"user id {self.uid}"

    def own(self, path: Path) -> None:
        """Make this user the owner of a new file or folder."""
        if self.lent:
            os.chown(path, self.uid, self.gid)

    def folder(self, path: Path) -> Path:
        """Create a folder that only this user (and root) can enter, unless it exists."""
        path.mkdir(mode=0o700, exist_ok=True)
        if self.lent and path.stat().st_uid != self.uid:
            self.own(path)
        return path

    @contextmanager
    def entering(self, *folders: Path) -> Iterator[tuple[list[str], list[int]]]:
        """Yield paths by which a process of this user opens the folders, and descriptors for it."""
        if not self.lent or not Path("/proc/self/fd").exists():
            yield [str(folder) for folder in folders], []
            return
        with ExitStack() as stack:
            fds = []
            for folder in folders:
                fds.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
                stack.callback(os.close, fds[-1])
            yield [f"/proc/self/fd/{fd}" for fd in fds], fds

    def run(
        self, command: Sequence[str | Path], *, fds: Sequence[int] = (), text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user, in its own session and with a minimal environment.

        Its own session, so that Ctrl-C in the terminal does not signal the server. A minimal
        environment, so that no PG* variable changes its behaviour and it contains no secrets.
        """
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        if "LD_LIBRARY_PATH" in os.environ:
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        try:
            return subprocess.run(  # noqa: S603 - our own binaries, without a shell
                [str(word) for word in command],
                input=text,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                cwd="/",
                env=environment,
                pass_fds=fds,
                start_new_session=True,
                user=self.uid if self.lent else None,
                group=self.gid if self.lent else None,
                extra_groups=[] if self.lent else None,
            )
        except OSError as error:
            if self.lent and error.errno in (errno.EPERM, errno.EINVAL):
                raise EmbeddedFailed(
                    f"Postgres does not run as root, and this system does not let root switch to "
                    f"the user {self}: run as an ordinary user, or set PENSTOCK_DSN to a server."
                ) from error
            raise
