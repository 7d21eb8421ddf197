"""The processes of the world: started like by a supervisor, and killed by faults."""

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
    """One program with a name, which is started again and again."""

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        *,
        python: bool = True,
    ) -> None:
        """`words`: a Python module and its arguments; or a program and its arguments."""
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
        """`prefix`: a command in front; the extra environment is for this process only."""
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
        """Kill it without warning; processes that it has started must notice that."""
        self.end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it in good order; return when it has ended, or kill it if that takes too long."""
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
            # It did not stop on request: this counts as an unexpected end.
            self._log_exit(self._popen.returncode, meant=False)
            return
        self._log_exit(code, meant=number == signal.SIGKILL or code in (0, -number))

    def note_end(self) -> None:
        """Log an unexpected end."""
        if self._popen is not None and not self._noted and self._popen.poll() is not None:
            self._log_exit(self._popen.returncode, meant=self._condemned)

    def sweep(self) -> None:
        """Kill it and the processes that it has started."""
        if self._popen is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()

    def _log_exit(self, code: int, *, meant: bool) -> None:
        if not self._noted:
            self._noted = True
            self._log.write(
                Exit(name=self.name, pid=self.pid, code=code, meant=meant, began=self._began)
            )


def _base() -> dict[str, str]:
    """Return the environment without the settings of the person who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return kept | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
