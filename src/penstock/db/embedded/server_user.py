"""The user the embedded Postgres runs as, since Postgres refuses to run as root.

Root lends it another user. That user need not be able to walk to the data: root opens the folders
and hands them over, and Postgres finds them as `/proc/self/fd/N`, which the kernel resolves
without asking the folders above. So the data stays under PENSTOCK_HOME, also below a closed
`/root`, nobody else can come near it, and no permission of anyone's folders is changed.
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
    """The user Postgres runs as: ourselves, or another one when we are root."""

    uid: int
    gid: int
    lent: bool

    @classmethod
    def of(cls, home: Path) -> "ServerUser":
        """Choose: whoever owns the data, else the home, else `postgres`, else `nobody`.

        An owner found comes first so that the choice never changes under existing data, and so
        that `sudo` in someone's project leaves nothing behind that they cannot use.
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
            "Postgres does not run as root, and neither a user `postgres` nor `nobody` exists to "
            "lend it: add one, run as an ordinary user, or set PENSTOCK_DSN to a server."
        )

    def __str__(self) -> str:
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"user id {self.uid}"

    def own(self, path: Path) -> None:
        """Make a file or folder that we made this user's."""
        if self.lent:
            os.chown(path, self.uid, self.gid)

    def folder(self, path: Path) -> Path:
        """Make a folder that only this user (and root) can enter, if it is not there yet."""
        path.mkdir(mode=0o700, exist_ok=True)
        if self.lent and path.stat().st_uid != self.uid:
            self.own(path)
        return path

    @contextmanager
    def entering(self, *folders: Path) -> Iterator[tuple[list[str], list[int]]]:
        """Names by which a process of this user reaches the folders, and descriptors to pass."""
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
        """Run a command as this user, in a session of its own and with a bare environment.

        Its own session, so that Ctrl-C in the terminal is not also meant for the server; a bare
        environment, so that no PG* variable changes its mind and our secrets are not in it.
        """
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        if "LD_LIBRARY_PATH" in os.environ:
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        try:
            return subprocess.run(  # noqa: S603 - our own binaries, no shell between
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
                    f"Postgres does not run as root, and this system does not let root become "
                    f"{self}: run as an ordinary user, or set PENSTOCK_DSN to a server."
                ) from error
            raise
