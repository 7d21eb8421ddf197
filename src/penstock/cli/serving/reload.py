"""`penstock dev --reload`: the app in a process of its own, started anew when its code changes.

This process holds what outlives that: the address, and a use of the embedded database. A process
that ends by itself, of a syntax error say, has printed why; the next change starts another.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.db.embedded.database import Embedded

if TYPE_CHECKING:
    from penstock.base.settings import Settings

WATCHED = (".py", ".toml", ".env")
_LOOK_SECONDS = 0.25
# How long the app may take to leave: its jobs end or are given back within this.
_LEAVE_SECONDS = 15.0
# Folders that hold no code of the app's own; hidden ones are left out, too.
_FOREIGN = ("node_modules", "__pycache__", "site-packages", "venv")

Seen = dict[Path, tuple[int, int]]


def look(folder: Path) -> Seen:
    """Every file of the app's code, with the moment it was written and its size."""
    found: Seen = {}
    for path in _files(folder):
        try:
            state = path.stat()
        except OSError:  # it went in this moment
            continue
        found[path] = (state.st_mtime_ns, state.st_size)
    return found


def _files(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in _FOREIGN
            and not (Path(where) / name / "pyvenv.cfg").exists()
        ]
        yield from (Path(where) / name for name in names if name.endswith(WATCHED))


def changed(before: Seen, now: Seen) -> list[Path]:
    """Written, new or gone since."""
    return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))


class Reloader:
    """`words`: the command line of the app's process, to which what it inherits is added."""

    def __init__(self, words: Sequence[str], sock: socket.socket, folder: Path) -> None:
        self._words = words
        self._sock = sock
        self._folder = folder
        # Never written to: its end tells the app that we are gone, whatever ended us.
        self._life, self._held = os.pipe()
        # A byte comes here from each that serves.
        self._ready, self._tell = os.pipe()
        os.set_blocking(self._ready, False)
        self._served = False
        self._told: list[int] = []

    def run(self) -> None:
        """Until told to stop."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self._hear) for number in numbers}
        try:
            seen = look(self._folder)
            process = self._start()
            while not self._told:
                seen = self._wait(process, seen)
                self._end(process)
                if not self._told:
                    process = self._start()
            self._end(process)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _wait(self, process: "subprocess.Popen[bytes]", seen: Seen) -> Seen:
        """For a change, or a word to stop; what is there then."""
        is_waiting = False
        while not self._told:
            if not is_waiting and process.poll() is not None:
                is_waiting = True
                _say("The app has ended; it starts again when a file changes.")
            now = look(self._folder)
            if differing := changed(seen, now):
                names = ", ".join(str(path.relative_to(self._folder)) for path in differing[:3])
                more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""  # noqa: PLR2004
                _say(f"{names}{more} changed: starting again.")
                return now
            time.sleep(_LOOK_SECONDS)
        return seen

    def _start(self) -> "subprocess.Popen[bytes]":
        inherited = (self._sock.fileno(), self._life, self._tell)
        # The first that serves says where, and how to sign in.
        numbers = ",".join(map(str, (*inherited, int(not self._has_served()))))
        return subprocess.Popen(  # noqa: S603  # ourselves
            [sys.executable, "-m", "penstock", *self._words, "--inherit", numbers],
            pass_fds=inherited,
            # A Ctrl-C is for us: we pass it on, and once.
            start_new_session=True,
        )

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _has_served(self) -> bool:
        with suppress(BlockingIOError):
            self._served = os.read(self._ready, 1) != b"" or self._served
        return self._served

    def _hear(self, number: int, _frame: object) -> None:
        self._told.append(number)


def run(words: Sequence[str], sock: socket.socket, folder: Path, settings: "Settings") -> None:
    """Keep the app running, and anew with each change below the folder, until told to stop."""
    with ExitStack() as held:
        if settings.dsn is None:
            embedded = Embedded.use(settings.home)
            held.callback(embedded.leave)
        Reloader(words, sock, folder).run()


def _say(text: str) -> None:
    typer.echo(text, err=True)
