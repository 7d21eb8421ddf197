"""Processes of the world: started as a supervisor would, killed as fate would."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fire.logs import OUTPUTS, Exit, Log

TESTS = Path(__file__).resolve().parents[1]
LEAVE_SECONDS = 60.0


class Child:
    """One program with a name, in one life after the other."""

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        *,
        python: bool = True,
    ) -> None:
        """`words`: a module of Python and its arguments; or a program and its own."""
        self.name = name
        self._words = [sys.executable, "-m", *words] if python else list(words)
        self._environment = _base() | dict(environment)
        self._output = folder / OUTPUTS / f"{name}.log"
        self._log = Log(folder)
        self._popen: subprocess.Popen[bytes] | None = None
        self._noted = True
        self._condemned = False
        self._began = 0.0

    @property
    def pid(self) -> int:
        assert self._popen
        return self._popen.pid

    @property
    def runs(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def said(self) -> str:
        return self._output.read_text(errors="replace")[-2_000:]

    def start(self, prefix: Sequence[str] = (), **environment: str) -> None:
        """`prefix`: what it is started through; more of the environment is for this life only."""
        self.note_end()
        with self._output.open("ab") as output:
            self._popen = subprocess.Popen(
                [*prefix, *self._words],
                env=self._environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._noted = self._condemned = False
        self._began = time.time()

    def signal(self, number: int) -> None:
        if self.runs:
            self._condemned |= number == signal.SIGKILL
            os.kill(self.pid, number)

    def kill(self) -> None:
        """No goodbye; processes that it has started see to themselves."""
        self.end(signal.SIGKILL)

    def stop(self) -> None:
        """In good order; returns when it has left, or kills it when that takes too long."""
        self.end(signal.SIGTERM)

    def end(self, number: int) -> None:
        if self._popen is None:
            return
        if not self.runs and not self._condemned:
            self.note_end()
            return
        self._popen.send_signal(number)
        try:
            code = self._popen.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
            # It did not leave when told: that is as if it had ended by itself.
            self._tell(self._popen.returncode, meant=False)
            return
        self._tell(code, meant=number == signal.SIGKILL or code in (0, -number))

    def note_end(self) -> None:
        """Write down an end that nobody has asked for."""
        if self._popen is not None and not self._noted and self._popen.poll() is not None:
            self._tell(self._popen.returncode, meant=self._condemned)

    def sweep(self) -> None:
        """Also what it has started, and left."""
        if self._popen is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()

    def _tell(self, code: int, *, meant: bool) -> None:
        if not self._noted:
            self._noted = True
            self._log.write(
                Exit(name=self.name, pid=self.pid, code=code, meant=meant, began=self._began)
            )


def _base() -> dict[str, str]:
    """The environment without what may be set for the one who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return kept | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
