"""Queues and how their jobs are tried again: what an app declares of them."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from penstock.client.config import options
from penstock.client.config.options import Duration
from penstock.client.config.source_location import Place
from penstock.errors import Misconfigured

Backoff = Literal["constant", "linear", "exponential"]
Order = Literal["strict", "aging", "fair"]
Drive = Literal["worker", "http"]

BACKOFFS = ("constant", "linear", "exponential")
ORDERS = ("strict", "aging", "fair")
DRIVES = ("worker", "http")


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a job is tried, and how long it waits in between.

    attempts  starts that may fail, 1 to 1000
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
        return options.given(
            {
                "attempts": options.whole(self.attempts, "attempts", 1, 1000),
                "backoff": options.word(self.backoff, "backoff", BACKOFFS),
                "delay_seconds": options.seconds(self.delay, "delay", zero=True),
                "backoff_max_seconds": options.seconds(self.max, "max", zero=True),
            }
        )


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


def make_queue(  # noqa: PLR0913  # one per option of the contract
    name: str,
    place: Place,
    *,
    concurrency: int | None,
    rate: str | None,
    burst: int | None,
    order: str | None,
    aging_step: Duration | None,
    timeout: Duration | None,
    stale_after: Duration | None,
    stuck_after: Duration | None,
    retry: Retries | None,
    recovery: int | None,
    retention: Duration | None,
    retention_failed: Duration | None,
    inline: bool,
    local_only: bool,
    drive: str | None,
) -> Queue:
    """Check every option, and leave to SQL what was not said."""
    if retry is not None and not isinstance(retry, Retries):
        raise options.wrong("retry", retry, 'it may be Retries(attempts=3, delay="5m")')
    if burst is not None and rate is None:
        raise options.wrong("burst", burst, "it needs a rate")
    declared = options.given(
        {
            "concurrency": options.whole(concurrency, "concurrency", 1, 1_000_000),
            "rate": options.rate(rate, "rate"),
            "burst": options.whole(burst, "burst", 1, 1_000_000_000),
            "order": options.word(order, "order", ORDERS),
            "aging_step_seconds": options.seconds(aging_step, "aging_step", zero=True),
            "timeout_seconds": options.seconds(timeout, "timeout"),
            "stale_after_seconds": options.seconds(stale_after, "stale_after"),
            "stuck_after_seconds": options.seconds(stuck_after, "stuck_after"),
            **(retry.declared() if retry else {}),
            "recovery": options.whole(recovery, "recovery", 0, 1000),
            "retention_seconds": options.kept(retention, "retention"),
            "retention_failed_seconds": options.kept(retention_failed, "retention_failed"),
            # Said only where it is so: a database of the version before does not know it.
            "local_only": options.flag(local_only, "local_only") or None,
            "drive": options.word(drive, "drive", DRIVES),
        }
    )
    return Queue(options.name(name, "queue"), declared, options.flag(inline, "inline"), place)


def name_of(queue: Any, known: Mapping[str, Queue]) -> str:
    """Of what `@app.job(queue=…)` was given: one of the app's queues, or a name."""
    if isinstance(queue, str):
        return options.name(queue, "queue")
    if inspect.isfunction(queue):
        raise Misconfigured(
            f"@app.job above {queue.__name__} needs parentheses, and the queue in them: "
            '@app.job(queue="...")'
        )
    if not isinstance(queue, Queue):
        raise options.wrong("queue", queue, "it may be what app.queue(...) gave, or its name")
    if queue.name not in known:
        raise Misconfigured(
            f"queue {queue.name} ({queue.place}) was declared by another Penstock: declare it "
            "here, or give its name"
        )
    return queue.name
