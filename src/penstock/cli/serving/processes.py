"""Processes of this program that inherit a socket: several at once, or one after another.

`serve --processes` starts several on one address, replaces those that end, and ends them together.
`dev --reload` starts the app in a process of its own, and anew when its code changes: the address
and a use of the embedded database are this process's, and outlive that.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.output.console import print_error
from penstock.cli.serving.loop import STOP_SIGNALS
from penstock.db.embedded.database import Embedded

if TYPE_CHECKING:
    from penstock.base.settings import Settings

WATCHED = (".py", ".toml", ".env")
_POLL_SECONDS = 0.05
# A process that ends is replaced, but not in a loop without a pause.
_PAUSE_SECONDS = 1.0
# How long processes may take to leave before they are killed: jobs end or are released within this.
_LEAVE_SECONDS = 15.0
_FILES_SECONDS = 0.25
# Folders that hold no code of the app's own; hidden ones are left out, too.
_FOREIGN = ("node_modules", "__pycache__", "site-packages", "venv")

_log = logging.getLogger("penstock.serve")


class _Parent:
    """`words`: the command line of each process, to which what it inherits is added."""

    def __init__(self, words: Sequence[str], sock: socket.socket) -> None:
        self._words = words
        self._sock = sock
        # Never written to: its end tells the processes that we are gone, whatever ended us.
        self._life, self._held = os.pipe()
        self._is_stopping = False

    def _start(self, ready: int, *more: int) -> "subprocess.Popen[bytes]":
        """Start a process, which writes a byte to the pipe `ready` when it serves."""
        inherited = (self._sock.fileno(), self._life, ready)
        numbers = ",".join(map(str, (*inherited, *more)))
        return subprocess.Popen(  # noqa: S603  # ourselves
            [sys.executable, "-m", "penstock", *self._words, "--inherit", numbers],
            pass_fds=inherited,
            # A Ctrl-C is for us: we pass it on, and once.
            start_new_session=True,
        )

    @contextmanager
    def _until_signal(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._stop) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, _number: int, _frame: object) -> None:
        self._is_stopping = True


def _pipe() -> tuple[int, int]:
    ready, write = os.pipe()
    os.set_blocking(ready, False)
    return ready, write


def _end(process: "subprocess.Popen[bytes]", deadline: float) -> None:
    """Wait until a process that is to leave has left; after the deadline it is killed."""
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(slots=True)
class _Child:
    process: "subprocess.Popen[bytes]"
    ready: int
    """A byte comes here when it serves."""
    is_ready: bool = False
    is_leaving: bool = False
    began: float = field(default_factory=time.monotonic)

    def check_ready(self) -> None:
        if not self.is_ready:
            with suppress(BlockingIOError):
                self.is_ready = os.read(self.ready, 1) != b""

    def leave(self) -> None:
        """Ask it to leave; when it is asked again, it leaves at once."""
        self.is_leaving = True
        self.process.terminate()


class Children(_Parent):
    """Several processes on one socket."""

    def __init__(self, words: Sequence[str], sock: socket.socket, n: int) -> None:
        super().__init__(words, sock)
        self._n = n
        self._children: list[_Child] = []

    def run(self, on_ready: Callable[[], None]) -> int:
        """Until told to stop; the exit code: 0, or that of a child that could not start."""
        with self._until_signal():
            return self._watch(on_ready)

    def _watch(self, on_ready: Callable[[], None]) -> int:
        while len(self._children) < self._n and not self._is_stopping:
            self._add()
        is_greeted = False
        while not self._is_stopping:
            for child in list(self._children):
                child.check_ready()
                code = child.process.poll()
                if code is None:
                    continue
                if not child.is_ready and not is_greeted:
                    self._end_all()
                    return code if code > 0 else 1
                self._replace(child, code)
            if not is_greeted and all(child.is_ready for child in self._children):
                is_greeted = True
                on_ready()
            time.sleep(_POLL_SECONDS)
        self._end_all()
        return 0

    def _stop(self, number: int, frame: object) -> None:
        super()._stop(number, frame)
        for child in self._children:
            child.leave()

    def _add(self) -> None:
        ready, write = _pipe()
        process = self._start(write)
        os.close(write)
        self._children.append(_Child(process, ready))

    def _replace(self, child: _Child, code: int) -> None:
        _log.warning("a server process ended with code %d; another takes its place", code)
        self._children.remove(child)
        os.close(child.ready)
        time.sleep(max(0.0, child.began + _PAUSE_SECONDS - time.monotonic()))
        if not self._is_stopping:
            self._add()

    def _end_all(self) -> None:
        deadline = time.monotonic() + _LEAVE_SECONDS
        for child in self._children:
            if not child.is_leaving:  # one may have been about to start when the signal came
                child.leave()
        for child in self._children:
            _end(child.process, deadline)
            os.close(child.ready)


Files = dict[Path, tuple[int, int]]


def app_files(folder: Path) -> Files:
    """Every file of the app's code, with the moment it was written and its size."""
    files: Files = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in _FOREIGN
            and not (Path(parent) / name / "pyvenv.cfg").exists()
        ]
        for path in (Path(parent) / name for name in names if name.endswith(WATCHED)):
            with suppress(OSError):  # it went in this moment
                state = path.stat()
                files[path] = (state.st_mtime_ns, state.st_size)
    return files


def changed(before: Files, now: Files) -> list[Path]:
    """Written, new or gone since."""
    return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))


class Reloader(_Parent):
    """The app in a process that starts anew when a file below the folder changes."""

    def __init__(self, words: Sequence[str], sock: socket.socket, folder: Path) -> None:
        super().__init__(words, sock)
        self._folder = folder
        self._ready, self._write = _pipe()
        self._has_served = False

    def run(self) -> None:
        """Until told to stop."""
        with self._until_signal():
            files = app_files(self._folder)
            while not self._is_stopping:
                with suppress(BlockingIOError):
                    self._has_served = os.read(self._ready, 1) != b"" or self._has_served
                # The first that serves prints the address, and how to sign in.
                process = self._start(self._write, int(not self._has_served))
                files = self._wait(process, files)
                process.terminate()
                _end(process, time.monotonic() + _LEAVE_SECONDS)

    def _wait(self, process: "subprocess.Popen[bytes]", before: Files) -> Files:
        """For a change, or a signal to stop; the files that are there then.

        A process that ends by itself, of a syntax error say, has printed why.
        """
        has_ended = False
        while not self._is_stopping:
            if not has_ended and process.poll() is not None:
                has_ended = True
                print_error("The app has ended; it starts again when a file changes.")
            files = app_files(self._folder)
            if paths := changed(before, files):
                names = ", ".join(str(path.relative_to(self._folder)) for path in paths[:3])
                more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""  # noqa: PLR2004
                print_error(f"{names}{more} changed: starting again.")
                return files
            time.sleep(_FILES_SECONDS)
        return before


def reload(words: Sequence[str], sock: socket.socket, folder: Path, settings: "Settings") -> None:
    """Keep the app running, and anew with each change below the folder, until told to stop."""
    with ExitStack() as held:
        if settings.dsn is None:
            embedded = Embedded.use(settings.home)
            held.callback(embedded.leave)
        Reloader(words, sock, folder).run()
