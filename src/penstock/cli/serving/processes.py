"""Several server processes on one socket: started, watched, replaced, and ended together."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_LOOK_SECONDS = 0.05
# A process that ends is replaced, but not in a loop without a breath.
_BREATH_SECONDS = 1.0
# How long processes may take to leave before they are killed.
_LEAVE_SECONDS = 15.0

_log = logging.getLogger("penstock.serve")


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    ready: int
    """A byte comes here when it serves."""
    is_ready: bool = False
    is_told: bool = False
    """To leave; told again, it leaves at once."""
    began: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        if not self.is_ready:
            try:
                self.is_ready = os.read(self.ready, 1) != b""
            except BlockingIOError:
                return

    def tell(self) -> None:
        self.is_told = True
        if self.process.poll() is None:
            self.process.terminate()

    def close(self) -> None:
        os.close(self.ready)


class Children:
    """`words`: the command line of each, to which what it inherits is added."""

    def __init__(self, words: list[str], sock: socket.socket, n: int) -> None:
        self._words = words
        self._sock = sock
        self._n = n
        self._children: list[_Child] = []
        # Never written to: its end tells the children that we are gone, whatever ended us.
        self._life, self._held = os.pipe()
        self._told = 0

    def run(self, on_ready: Callable[[], None]) -> int:
        """Until told to stop; the exit code: 0, or that of a child that could not start."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self._hear) for number in numbers}
        try:
            return self._watch(on_ready)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _watch(self, on_ready: Callable[[], None]) -> int:
        while len(self._children) < self._n and not self._told:
            self._children.append(self._start())
        greeted = False
        while not self._told:
            for child in list(self._children):
                child.look()
                code = child.process.poll()
                if code is None:
                    continue
                if not child.is_ready and not greeted:
                    self._end()
                    return code if code > 0 else 1
                self._replace(child, code)
            if not greeted and all(child.is_ready for child in self._children):
                greeted = True
                on_ready()
            time.sleep(_LOOK_SECONDS)
        self._end()
        return 0

    def _hear(self, _number: int, _frame: object) -> None:
        self._told += 1
        for child in self._children:
            child.tell()

    def _start(self) -> _Child:
        ready, tell = os.pipe()
        os.set_blocking(ready, False)
        inherited = (self._sock.fileno(), self._life, tell)
        process = subprocess.Popen(  # noqa: S603  # ourselves
            [
                *(sys.executable, "-m", "penstock", *self._words),
                *("--inherit", ",".join(map(str, inherited))),
            ],
            pass_fds=inherited,
            # A Ctrl-C is for us: we pass it on, and once.
            start_new_session=True,
        )
        os.close(tell)
        return _Child(process, ready)

    def _replace(self, child: _Child, code: int) -> None:
        _log.warning("a server process ended with code %d; another takes its place", code)
        self._children.remove(child)
        child.close()
        rest = child.began + _BREATH_SECONDS - time.monotonic()
        if rest > 0:
            time.sleep(rest)
        if not self._told:
            self._children.append(self._start())

    def _end(self) -> None:
        until = time.monotonic() + _LEAVE_SECONDS
        for child in self._children:
            if not child.is_told:  # one may have been about to start when the signal came
                child.tell()
        for child in self._children:
            try:
                child.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            child.close()
