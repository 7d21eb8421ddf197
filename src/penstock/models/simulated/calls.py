"""What was asked of the model, and how it went: for tests, and for people who watch it.

Never what a prompt said; only how long it was.
"""

import json
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from penstock.errors import Misconfigured
from penstock.models.simulated.connection import Connection

# A bench makes thousands of calls a second; the oldest make room.
_KEPT = 100_000


@dataclass(slots=True)
class Call:
    path: str
    at: float  # when it had come wholly; seconds since 1970, as the others
    connected_at_once: int  # calls that were open then, this one among them
    model: str | None = None
    stream: bool = False
    prompt_chars: int = 0
    prompt_tokens: int = 0
    fault: str | None = None
    first_byte_at: float | None = None
    ended_at: float | None = None
    status: int | None = None  # None: no answer had begun
    gone: bool = False  # the client left before its answer was complete


class Calls:
    """The calls of one model: those that ended and those that are open."""

    def __init__(self, log: Path | None = None) -> None:
        self.kept: deque[Call] = deque(maxlen=_KEPT)
        self.total = 0
        self.open = 0
        self.most_at_once = 0
        self._log: TextIO | None = None
        if log is not None:
            try:
                self._log = log.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                raise Misconfigured(f"Cannot write to {log}: {error.strerror}.") from None

    def begin(self, path: str) -> Call:
        self.total += 1
        self.open += 1
        self.most_at_once = max(self.most_at_once, self.open)
        call = Call(path, time.time(), self.open)
        self.kept.append(call)
        return call

    def end(self, call: Call, connection: Connection) -> None:
        self.open -= 1
        call.ended_at = time.time()
        call.status = connection.status
        call.first_byte_at = connection.first_byte_at
        call.gone = connection.gone
        if self._log is not None:
            self._log.write(json.dumps(asdict(call), separators=(",", ":")) + "\n")

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def report(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "open": self.open,
            "most_at_once": self.most_at_once,
            "calls": [asdict(call) for call in self.kept],
        }
