"""Processes of this program that inherit a socket: several at once, or one after another.

`serve --processes` starts several on one address, replaces those that exit, and stops them
together. `dev --reload` starts the app in a child process, and restarts it when its code changes;
this process keeps the socket and the embedded database meanwhile.
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
# The shortest time before a process that keeps exiting is started again.
_PAUSE_SECONDS = 1.0
# After this time to leave, processes are killed. It suffices to finish or release their jobs.
_LEAVE_SECONDS = 15.0
_FILES_SECONDS = 0.25
# Folders without code of the app; hidden folders are ignored, too.
_FOREIGN = ("node_modules", "__pycache__", "site-packages", "venv")

_log = logging.getLogger("penstock.serve")


class _Parent:
    """Starts processes with the command line `words`, to which the inherited numbers are added."""

    def __init__(self, words: Sequence[str], sock: socket.socket) -> None:
        self._words = words
        self._sock = sock
        # Never written to: when this process exits, for any reason, the children read its end.
        self._life, self._held = os.pipe()
        self._is_stopping = False

    def _start(self, ready: int, *more: int) -> "subprocess.Popen[bytes]":
        """Start a process that writes a byte to the pipe `ready` when it serves."""
        inherited = (self._sock.fileno(), self._life, ready)
        numbers = ",".join(map(str, (*inherited, *more)))
        return subprocess.Popen(  # noqa: S603  # this program
            [sys.executable, "-m", "penstock", *self._words, "--inherit", numbers],
            pass_fds=inherited,
            # A terminal would send Ctrl-C to all processes; this one passes it on, once.
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
    """Wait until a process has exited; kill it after the deadline."""
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(slots=True)
class _Child:
    process: "subprocess.Popen[bytes]"
    ready: int
    """The pipe from which a byte is read when it serves."""
    is_ready: bool = False
    is_leaving: bool = False
    began: float = field(default_factory=time.monotonic)

    def check_ready(self) -> None:
        if not self.is_ready:
            with suppress(BlockingIOError):
                self.is_ready = os.read(self.ready, 1) != b""

    def leave(self) -> None:
        """Ask it to stop; when asked again, it stops at once."""
        self.is_leaving = True
        self.process.terminate()


class Children(_Parent):
    """Several processes on one socket."""

    def __init__(self, words: Sequence[str], sock: socket.socket, n: int) -> None:
        super().__init__(words, sock)
        self._n = n
        self._children: list[_Child] = []

    def run(self, on_ready: Callable[[], None]) -> int:
        """Run until stopped; return 0, or the exit code of a child that could not start."""
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
        _log.warning("a server process exited with code %d; another one replaces it", code)
        self._children.remove(child)
        os.close(child.ready)
        time.sleep(max(0.0, child.began + _PAUSE_SECONDS - time.monotonic()))
        if not self._is_stopping:
            self._add()

    def _end_all(self) -> None:
        deadline = time.monotonic() + _LEAVE_SECONDS
        for child in self._children:
            if not child.is_leaving:  # it may have been started after the signal
                child.leave()
        for child in self._children:
            _end(child.process, deadline)
            os.close(child.ready)


Files = dict[Path, tuple[int, int]]


def app_files(folder: Path) -> Files:
    """Return every file of the app's code, with its modification time and size."""
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
            with suppress(OSError):  # it was removed meanwhile
                state = path.stat()
                files[path] = (state.st_mtime_ns, state.st_size)
    return files


def changed(before: Files, now: Files) -> list[Path]:
    """Return the files that were changed, added or removed."""
    return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))


class Reloader(_Parent):
    """Runs the app in a process that is restarted when a file below the folder changes."""

    def __init__(self, words: Sequence[str], sock: socket.socket, folder: Path) -> None:
        super().__init__(words, sock)
        self._folder = folder
        self._ready, self._write = _pipe()
        self._has_served = False

    def run(self) -> None:
        """Run until stopped."""
        with self._until_signal():
            files = app_files(self._folder)
            while not self._is_stopping:
                with suppress(BlockingIOError):
                    self._has_served = os.read(self._ready, 1) != b"" or self._has_served
                # The first process that serves prints the address and the sign-in link.
                process = self._start(self._write, int(not self._has_served))
                files = self._wait(process, files)
                process.terminate()
                _end(process, time.monotonic() + _LEAVE_SECONDS)

    def _wait(self, process: "subprocess.Popen[bytes]", before: Files) -> Files:
        """Wait for a change or a signal to stop; return the files as they are then.

        If the process exits, because of a syntax error for example, it has printed why.
        """
        has_exited = False
        while not self._is_stopping:
            if not has_exited and process.poll() is not None:
                has_exited = True
                print_error("The app has exited; it starts again when a file changes.")
            files = app_files(self._folder)
            if paths := changed(before, files):
                names = ", ".join(str(path.relative_to(self._folder)) for path in paths[:3])
                more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""  # noqa: PLR2004
                print_error(f"{names}{more} changed: starting again.")
                return files
            time.sleep(_FILES_SECONDS)
        return before


def reload(words: Sequence[str], sock: socket.socket, folder: Path, settings: "Settings") -> None:
    """Run the app until stopped, and restart it at each change below the folder."""
    with ExitStack() as held:
        if settings.dsn is None:
            embedded = Embedded.use(settings.home)
            held.callback(embedded.leave)
        Reloader(words, sock, folder).run()
