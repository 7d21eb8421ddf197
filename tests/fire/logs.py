"""The logs of a run in its folder: one file of JSON lines for each kind of witness.

acks        the answers to the requests of clients
handlers    the actions of handlers: beginnings, calls, ends
calls       the calls of the model; written by `penstock model --log`
webhooks    the messages that the receiver got
faults      when each fault began and ended
watch       the events that watchers of streams got
samples     the results of the sampler for each snapshot
exits       how each process ended

Beside them, `out/<name>.log` is the output of each process. `at` is time.time() everywhere.

The model logs no prompts. So a handler calls a model with the name `model_name(tag, attempt)`: the
simulated model accepts any name, and logs it.

A payload holds the `tag` of its request. With `"fails": true` the job is meant to fail.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

Fate = Literal["accepted", "refused", "doubt", "rolled_back"]
Word = Literal["start", "model", "end", "cancelled", "on_finish", "block", "unblock"]

OUTPUTS = "out"
_MODEL = "fire"


def model_name(tag: str, attempt: int) -> str:
    """Return the name of the model for this attempt of the job with this tag."""
    return f"{_MODEL} {attempt} {tag}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line. Other fields of a line are ignored when it is read."""

    file: ClassVar[str]
    at: float = field(default_factory=time.time)

    @classmethod
    def read(cls, folder: Path) -> list[Self]:
        """Read all lines. A line that was cut by a kill is skipped."""
        known = {one.name for one in fields(cls)}
        return [
            cls(**{name: value for name, value in line.items() if name in known})
            for line in _lines(folder / cls.file)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack(Entry):
    """The fate of one requested job. A batch has one for each of its jobs.

    `retry_of`: the job that was retried by hand; the new one has the same payload and tag.
    """

    file = "acks.jsonl"
    client: str
    tag: str
    kind: str
    fate: Fate
    key: str | None = None
    account: str | None = None
    job: str | None = None
    status: int | None = None
    code: str | None = None
    retry_of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Act(Entry):
    """An action of a handler or of `on_finish` (word `on_finish`). `worker`: the process's name."""

    file = "handlers.jsonl"
    job: str
    attempt: int
    tag: str
    word: Word
    kind: str = ""
    pid: int = field(default_factory=os.getpid)
    worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Entry):
    """One completed call, as the model logs it."""

    file = "calls.jsonl"
    path: str
    model: str | None = None
    fault: str | None = None
    status: int | None = None
    ended_at: float | None = None
    gone: bool = False

    @property
    def start(self) -> tuple[str, int] | None:
        """Return tag and attempt; None for a call of another model."""
        name, _, rest = (self.model or "").partition(" ")
        attempt, _, tag = rest.partition(" ")
        return (tag, int(attempt)) if name == _MODEL and tag else None

    @property
    def complete(self) -> bool:
        return self.status == 200 and not self.gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Entry):
    """One received webhook. `answered`: the status, or what happened instead."""

    file = "webhooks.jsonl"
    id: str
    job: str | None
    event: str | None
    status: str | None
    signature: bool
    answered: int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Entry):
    """`what`: the victim. Kills and pauses of a worker name it like handlers do: worker, pid."""

    file = "faults.jsonl"
    fault: str
    id: str
    word: Literal["begin", "end"]
    what: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight(Entry):
    """An event that a watcher got. Event `done`: it watched to the end and disconnects."""

    file = "watch.jsonl"
    watcher: str
    job: str
    event: str
    status: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Entry):
    """`away`: the server did not answer. `stuck`: something has made no progress for too long."""

    file = "samples.jsonl"
    word: Literal["sound", "breach", "away", "stuck"]
    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit(Entry):
    """`meant`: the campaign killed or stopped it. `began`: when this process started."""

    file = "exits.jsonl"
    name: str
    pid: int
    code: int
    meant: bool
    began: float = 0.0


class Log:
    """Writes lines from any number of processes. Each line is one write, which stays whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, int] = {}

    def write(self, entry: Entry) -> None:
        if entry.file not in self._files:
            # A forked process, or one with many threads, can append, too.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._files[entry.file] = os.open(self._folder / entry.file, flags, 0o644)
        # A kill may have cut the last line, so this one begins with a new line.
        text = "\n" + json.dumps(asdict(entry), separators=(",", ":")) + "\n"
        os.write(self._files[entry.file], text.encode())

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line
