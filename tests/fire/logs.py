"""What a run leaves behind in its folder: one file of JSON lines for each kind of witness.

acks        what clients were told of each request
handlers    what handlers did: starts, calls, ends
calls       what the model was asked; written by `penstock model --log`
webhooks    what came to the receiver
faults      when each fault began and ended
watch       what watchers of streams saw
samples     what the sampler saw in each snapshot
exits       how each process ended

Beside them, `out/<name>.log` is what each process has printed. `at` is time.time() everywhere.

A prompt is in no log of the model. So a handler asks for a model by the name `model_name(tag,
attempt)`: the simulated model takes any name, and writes it down.

A payload holds the `tag` of its request. With `"fails": true` it is meant to fail.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

Fate = Literal["accepted", "refused", "doubt", "rolled_back"]
Word = Literal["start", "model", "end", "cancelled", "hook", "block", "unblock"]

OUTPUTS = "out"
_MODEL = "fire"


def model_name(tag: str, attempt: int) -> str:
    """The model that start `attempt` of the job with this tag asks for."""
    return f"{_MODEL} {attempt} {tag}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line. What a line holds beyond these fields is left out when it is read."""

    file: ClassVar[str]
    at: float = field(default_factory=time.time)

    @classmethod
    def read(cls, folder: Path) -> list[Self]:
        """All that was written, as it was written. A line that a kill has torn is no line."""
        known = {one.name for one in fields(cls)}
        return [
            cls(**{name: value for name, value in line.items() if name in known})
            for line in _lines(folder / cls.file)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack(Entry):
    """The fate of one job that was asked for. A batch has one for each of its jobs.

    `retry_of`: the job that was to be tried anew; the new one has the same payload and tag.
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
    """What a handler, or `on_finish` (word `hook`), did. `worker`: the name of the process."""

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
    """One call that the model saw to its end, as it writes it."""

    file = "calls.jsonl"
    path: str
    model: str | None = None
    fault: str | None = None
    status: int | None = None
    ended_at: float | None = None
    gone: bool = False

    @property
    def start(self) -> tuple[str, int] | None:
        """Tag and attempt; None where it asked for another model."""
        name, _, rest = (self.model or "").partition(" ")
        attempt, _, tag = rest.partition(" ")
        return (tag, int(attempt)) if name == _MODEL and tag else None

    @property
    def complete(self) -> bool:
        return self.status == 200 and not self.gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Entry):
    """One webhook that came. `answered`: the status, or what was done instead."""

    file = "webhooks.jsonl"
    id: str
    job: str | None
    event: str | None
    status: str | None
    signature: bool
    answered: int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Entry):
    """`what`: whom it hit. Kills and pauses of a worker name it as handlers do: worker, pid."""

    file = "faults.jsonl"
    fault: str
    id: str
    word: Literal["begin", "end"]
    what: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight(Entry):
    """What a watcher saw. Event `done`: it watched to the end and goes away."""

    file = "watch.jsonl"
    watcher: str
    job: str
    event: str
    status: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Entry):
    """`away`: the server did not answer. `stuck`: something has stood still for too long."""

    file = "samples.jsonl"
    word: Literal["sound", "breach", "away", "stuck"]
    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit(Entry):
    """`meant`: we have killed it, or told it to stop. `began`: when this life did."""

    file = "exits.jsonl"
    name: str
    pid: int
    code: int
    meant: bool
    began: float = 0.0


class Log:
    """Writes lines from any number of processes. Each is one write, which others do not cut."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, int] = {}

    def write(self, entry: Entry) -> None:
        if entry.file not in self._files:
            # A process that was forked, or that many threads are in, appends all the same.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._files[entry.file] = os.open(self._folder / entry.file, flags, 0o644)
        # The line before may have been torn by a kill: so this one begins a line of its own.
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
