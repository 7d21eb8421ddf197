"""Queues and how their jobs are tried again: what an app declares of them."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.client.config.options import Duration
from penstock.client.config.source_location import Place
from penstock.engine.options.forms import read_name, wrong
from penstock.engine.options.option import read
from penstock.engine.options.queue import QUEUE, RETRIES, Backoff
from penstock.errors import Misconfigured


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a job is tried, and how long it waits in between.

    attempts  how often a job may fail, 1 to 1000
    backoff   constant, linear (delay, twice the delay, …) or exponential (delay, 2, 4, 8 times …)
    delay     the first wait
    max       the longest wait; a day unless said
    """

    attempts: int = 3
    backoff: Backoff = "linear"
    delay: Duration = "5m"
    max: Duration | None = None

    def __post_init__(self) -> None:
        self.declared()

    def declared(self) -> dict[str, Any]:
        """As `declare_queue` takes it."""
        return read(RETRIES, {option.name: getattr(self, option.name) for option in RETRIES})


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """One line in front of one thing that can do only so much. Made by `app.queue(...)`."""

    name: str
    declared: dict[str, Any]
    """Its options as `declare_queue` takes them."""
    inline: bool
    """Whether its jobs run in the process that submits them."""
    place: Place

    def __str__(self) -> str:
        return self.name

    @property
    def driven(self) -> bool:
        """Whether calls of the API run its jobs, and a submit starts the first one."""
        return self.declared.get("drive") == "http"

    @property
    def local_only(self) -> bool:
        """Whether its jobs may call models in private networks only."""
        return bool(self.declared.get("local_only"))


def make_queue(name: str, place: Place, given: Mapping[str, Any]) -> Queue:
    """Check every option, and leave to SQL what was not given."""
    retry = given["retry"]
    if retry is not None and not isinstance(retry, Retries):
        raise wrong("retry", retry, 'it may be Retries(attempts=3, delay="5m")')
    if given["burst"] is not None and given["rate"] is None:
        raise wrong("burst", given["burst"], "it needs a rate")
    declared = {**read(QUEUE, given), **(retry.declared() if retry else {})}
    inline = declared.pop("inline", False)  # the app's alone: the database does not keep it
    return Queue(read_name(name, "queue"), declared, inline, place)


def name_of(queue: Any, known: Mapping[str, Queue]) -> str:
    """Of what `@app.job(queue=…)` was given: one of the app's queues, or a name."""
    if isinstance(queue, str):
        return read_name(queue, "queue")
    if inspect.isfunction(queue):
        raise Misconfigured(
            f"@app.job above {queue.__name__} needs parentheses, and the queue in them: "
            '@app.job(queue="...")'
        )
    if not isinstance(queue, Queue):
        raise wrong("queue", queue, "it may be what app.queue(...) gave, or its name")
    if queue.name not in known:
        raise Misconfigured(
            f"queue {queue.name} ({queue.place}) was declared by another Penstock: declare it "
            "here, or give its name"
        )
    return queue.name
