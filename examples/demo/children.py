"""Processes of the demo: started, restarted when they die, stopped on request and in order."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# The least time between two starts of a process. It doubles while the process exits on its own.
_BREATH_SECONDS, _LONGEST_BREATH_SECONDS = 1.0, 30.0
_SOON_SECONDS = 10.0
# The time to stop after the first SIGTERM, and after the second one; then the process is killed.
_LEAVE_SECONDS, _HURRY_SECONDS = 3.5, 1.5


@dataclass(frozen=True, slots=True)
class End:
    """How one process ended."""

    pid: int
    code: int  # the exit code; below 0 the signal that killed it
    at: float  # time.monotonic() when it was asked to stop, otherwise when it exited
    was_asked: bool


OnEnd = Callable[["Child", End], None]


class Life:
    """A pipe that is never written to. When it closes, the children know that this process died."""

    def __init__(self) -> None:
        self.pipe, self._held = os.pipe()

    def close(self) -> None:
        os.close(self.pipe)
        os.close(self._held)


class Child:
    """One process and its successors.

    module   what `python -m` runs; its arguments are the pipe and then `words`
    on_end   called with each process that exited, except the last one
    """

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        *,
        life: Life,
        fds: Sequence[int] = (),
        on_end: OnEnd,
    ) -> None:
        self._command = [sys.executable, "-m", module, str(life.pipe), *words]
        self._fds = (life.pipe, *fds)
        self._on_end = on_end
        self._wanted = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._exited = asyncio.Event()
        self._exited.set()
        self._is_ending = False
        self._asked_at: float | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process; None if there is none at the moment."""
        return self._process.pid if self._process else None

    @property
    def is_wanted(self) -> bool:
        return self._wanted.is_set()

    async def keep_running(self, env: dict[str, str], folder: Path) -> None:
        """Run the process until `end`, whenever it is wanted."""
        breath = _BREATH_SECONDS
        while True:
            await self._wanted.wait()
            self._exited.clear()
            started = time.monotonic()
            # In its own session: Ctrl-C reaches only this process, which signals the others once.
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=env,
                cwd=folder,
                pass_fds=self._fds,
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
            )
            pid = self._process.pid
            if not self.is_wanted:  # `stop` was called before the process existed
                self._signal(signal.SIGTERM)
            code = await self._process.wait()
            self._process = None
            self._exited.set()
            if self._is_ending:
                return
            asked_at, self._asked_at = self._asked_at, None
            at = time.monotonic() if asked_at is None else asked_at
            self._on_end(self, End(pid, code, at, was_asked=asked_at is not None))
            lived = time.monotonic() - started
            gave_up = code >= 0 and lived < _SOON_SECONDS and self.is_wanted
            breath = min(2 * breath, _LONGEST_BREATH_SECONDS) if gave_up else _BREATH_SECONDS
            if lived < breath:
                await asyncio.sleep(breath - lived)

    def start(self) -> None:
        self._wanted.set()

    def stop(self) -> None:
        """Stop the process until `start` is called."""
        if not self._exited.is_set() and self._asked_at is None:
            self._asked_at = time.monotonic()
        self._wanted.clear()
        self._signal(signal.SIGTERM)

    def kill(self) -> int | None:
        """Kill the process, as a power failure would; return its id."""
        pid = self.pid
        self._signal(signal.SIGKILL)
        return pid

    async def end(self, hurry: asyncio.Event) -> None:
        """Terminate it, wait, terminate it again, kill it; in a hurry, wait less."""
        self._is_ending = True
        self._wanted.clear()
        self._signal(signal.SIGTERM)
        hurried = asyncio.create_task(hurry.wait())
        gone = asyncio.create_task(self._exited.wait())
        await asyncio.wait(
            {gone, hurried}, timeout=_LEAVE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        for number in (signal.SIGTERM, signal.SIGKILL):
            if gone.done():
                break
            self._signal(number)
            await asyncio.wait({gone}, timeout=_HURRY_SECONDS)
        hurried.cancel()
        gone.cancel()

    def _signal(self, number: signal.Signals) -> None:
        # The process may have exited already.
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
