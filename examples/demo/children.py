"""The demo's processes: started, again when they die, stopped on request, ended in order."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# One that ends sooner than this is not started again at once; one that gives up by itself again and
# again, ever later.
_BREATH_SECONDS, _LONGEST_BREATH_SECONDS = 1.0, 30.0
_SOON_SECONDS = 10.0
# What may take its time when told to end; then it is told again, and then killed.
_LEAVE_SECONDS, _HURRY_SECONDS = 3.5, 1.5


@dataclass(frozen=True, slots=True)
class End:
    """Of one process."""

    pid: int
    code: int  # below 0: the signal that killed it
    at: float  # by time.monotonic(): when it was told to stop, else when it ended
    was_asked: bool


OnEnd = Callable[["Child", End], None]


class Life:
    """A pipe that is never written to. Its end tells the children that we are gone."""

    def __init__(self) -> None:
        self.pipe, self._held = os.pipe()

    def close(self) -> None:
        os.close(self.pipe)
        os.close(self._held)


class Child:
    """One process, and the next one in its place.

    module   what `python -m` runs; it gets the pipe first, then `words`
    on_end   is told of each process that has ended, but not of the last one
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
        self._ended = asyncio.Event()
        self._ended.set()
        self._is_ending = False
        self._asked_at: float | None = None

    @property
    def pid(self) -> int | None:
        """None: there is no such process at the moment."""
        return self._process.pid if self._process else None

    @property
    def is_wanted(self) -> bool:
        return self._wanted.is_set()

    async def keep_running(self, env: dict[str, str], folder: Path) -> None:
        """Until `end`, whenever it is wanted."""
        breath = _BREATH_SECONDS
        while True:
            await self._wanted.wait()
            self._ended.clear()
            started = time.monotonic()
            # In a session of its own: Ctrl-C is for us, and we tell them, and once.
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
            if not self.is_wanted:  # it was stopped before there was anything to be told so
                self._signal(signal.SIGTERM)
            code = await self._process.wait()
            self._process = None
            self._ended.set()
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
        """It ends, and is not started again until `start`."""
        if not self._ended.is_set() and self._asked_at is None:
            self._asked_at = time.monotonic()
        self._wanted.clear()
        self._signal(signal.SIGTERM)

    def kill(self) -> int | None:
        """As a machine that loses power; the number of the process."""
        pid = self.pid
        self._signal(signal.SIGKILL)
        return pid

    async def end(self, hurry: asyncio.Event) -> None:
        """Ask, wait, ask again, and then do not ask; in a hurry, with little patience."""
        self._is_ending = True
        self._wanted.clear()
        self._signal(signal.SIGTERM)
        hurried = asyncio.create_task(hurry.wait())
        gone = asyncio.create_task(self._ended.wait())
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
        # It may be gone already, and nobody has noticed yet.
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
