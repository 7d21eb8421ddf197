"""The state of a queue in words: how many jobs wait, for what, and for how long."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.base import wording

# Jobs of a queue that nothing stops start within moments. A longer wait needs an explanation.
UNEXPLAINED_SECONDS = 30
_EXACT_DIGITS = 2

# Operators are alerted from this share of refused calls on.
NOTEWORTHY = 0.05

# Ranks of queues in tables: the ones that need attention first.
STOPPED, HELD, BUSY, IDLE = range(4)


@dataclass(frozen=True, slots=True)
class Count:
    """A number of jobs; `about`: it is an estimate, because counting would take long."""

    jobs: int
    about: bool = False

    def __add__(self, other: "Count") -> "Count":
        return Count(self.jobs + other.jobs, self.about or other.about)

    def __bool__(self) -> bool:
        return self.jobs > 0

    def __str__(self) -> str:
        """Return `1,204` or `about 26,000`."""
        return f"about {self.figure}" if self.about else self.figure

    @property
    def figure(self) -> str:
        return f"{rounded(self.jobs) if self.about else self.jobs:,}"


@dataclass(frozen=True, slots=True)
class QueueState:
    queue: dict[str, Any]
    """The queue's row as SQL returns it."""
    queued: Count
    scheduled: Count
    running: Count
    awaiting: Count
    due: Count
    """Scheduled jobs whose time has come; the next claim will see them."""
    style: str
    """The CSS class of the badge."""
    state: str
    """The words of the badge."""
    reason: str | None
    """Why jobs wait, and what can be done; commands in backticks."""
    oldest_at: str | None
    """Since when the oldest waiting job is due; None if no job waits."""
    waits_seconds: float
    rank: int
    unexplained: bool
    """Its jobs have waited for long, and the database knows no reason."""
    paused_seconds: float
    """0 if it is not paused."""

    @property
    def name(self) -> str:
        return str(self.queue["name"])

    @property
    def is_troubled(self) -> bool:
        """Whether something stops it, or its jobs wait without a reason."""
        return self.rank <= HELD


def queue_states(queues: Iterable[dict[str, Any]], now: str) -> list[QueueState]:
    """Return the queues by rank, then by name, so that rows keep their order."""
    rows = [_queue_state(queue, datetime.fromisoformat(now)) for queue in queues]
    return sorted(rows, key=lambda row: (row.rank, _natural(row.name)))


def waiting(rows: Sequence[QueueState]) -> Count:
    """Count the jobs that could start now if nothing stopped them."""
    return total(rows, "queued") + total(rows, "due")


def total(rows: Sequence[QueueState], status: str) -> Count:
    return sum((getattr(row, status) for row in rows), Count(0))


def rounded(jobs: int) -> int:
    """Round to two digits: an estimate is not better than that."""
    size: int = 10 ** max(0, len(str(jobs)) - _EXACT_DIGITS)
    return round(jobs / size) * size


def _queue_state(queue: dict[str, Any], now: datetime) -> QueueState:
    counts = {
        status: Count(queue["jobs"].get(status, 0), status in queue["about"])
        for status in ("queued", "scheduled", "running", "awaiting")
    }
    due = Count(queue["due"])
    waiting = bool(counts["queued"] + due)
    at_work = bool(counts["running"] + counts["awaiting"])
    oldest_at = queue["oldest_at"] if waiting else None
    waits_seconds = _since(oldest_at, now)
    why = queue["waiting_for"]
    lingers = waiting and why is None and waits_seconds >= UNEXPLAINED_SECONDS
    unexplained = lingers and not at_work
    style, state = _badge(queue)
    # A queue that no worker serves is in trouble only if jobs wait in it.
    is_stopped = why in ("no_worker", "no_handler") or (
        style in ("off", "bad") and not _is_unserved(queue)
    )
    if waiting and (is_stopped or unexplained):
        rank = STOPPED
    elif is_stopped:
        rank = HELD
    else:
        rank = BUSY if waiting or at_work else IDLE
    reason = None
    if waiting:
        reason = _reason(queue) or (_lingering(queue, at_work) if lingers else None)
    return QueueState(
        queue=queue,
        **counts,
        due=due,
        style=style,
        state=state,
        reason=reason,
        oldest_at=oldest_at,
        waits_seconds=waits_seconds,
        rank=rank,
        unexplained=unexplained,
        paused_seconds=_since(queue["paused_at"], now),
    )


def _is_unserved(queue: dict[str, Any]) -> bool:
    """Whether only a worker is missing."""
    may_start = not queue["paused_at"] and queue["circuit"]["state"] != "open"
    return may_start and queue["drive"] == "worker" and not queue["served"]


def _badge(queue: dict[str, Any]) -> tuple[str, str]:
    """Return style and words of the first state that applies."""
    circuit, why = queue["circuit"], queue["waiting_for"]
    is_open, cls = circuit["state"] == "open", circuit["class"]
    is_ramping = circuit["state"] == "ramping"
    states = (
        (queue["paused_at"], "off", "Paused"),
        (_is_unserved(queue), "bad" if why else "off", "No worker"),
        (why == "no_handler", "bad", "No handler"),
        (is_open and cls is None, "off", "Stopped by hand"),
        (is_open and cls in _HELD, "bad", "Held: action needed"),
        (is_open and cls == "rate_limited", "running", "Rate limited"),
        (is_open, "bad", "Provider unavailable"),
        (is_ramping and circuit["refused"] >= NOTEWORTHY, "running", "Provider refuses calls"),
        (is_ramping, "running", "Ramping up"),
        (True, "ok", "Ready"),
    )
    return next((style, words) for holds, style, words in states if holds)


def _lingering(queue: dict[str, Any], at_work: bool) -> str:  # noqa: FBT001
    """Explain a wait for which the database knows no reason."""
    if at_work:
        return "All slots of the workers are taken. More workers would start more jobs."
    if queue["drive"] != "worker":
        return "No call to `/process` runs them. The next submit, or any running server, makes one."
    return "Nothing stops its jobs, and none is running: the workers are busy with other queues."


_HELD = {
    "auth": "The provider refuses the key. Correct it, restart the workers, then resume the queue.",
    "quota": "The provider's quota or credit is used up. Raise it, then resume the queue.",
    "config": "The provider does not know the model, or refuses a setting. Correct the kind of "
    "job, restart the workers, then resume the queue.",
}


def _reason(queue: dict[str, Any]) -> str | None:
    """Return why its jobs do not start, or not more of them; None if no reason is known."""
    circuit, name, limit = queue["circuit"], queue["name"], queue["limit"]
    note = f" ({queue['paused_reason']})" if queue["paused_reason"] else ""
    next_try = wording.ahead(circuit["next_at"])
    reasons = {
        "paused": f"It is paused{note}. `penstock resume {name}` lets its jobs start again.",
        "no_worker": "No worker that serves it is alive. Start one: `penstock worker`.",
        "no_handler": "No worker has a handler for the kinds of its waiting jobs. Start a worker"
        " whose app declares them, or cancel these jobs.",
        "circuit_open": "The provider does not answer; jobs start automatically when it does."
        f" The next try is {next_try}.",
        "rate_limit": f"Its rate limit of {queue['rate']} is used up for the moment; jobs start"
        " automatically.",
        "queue_limit": f"All {limit or 0:,} slots are taken; the next job starts when one"
        " finishes.",
        "account_limit": "The accounts whose jobs wait run as many as their plans allow.",
        "ramping": "The provider answers again; jobs start in growing numbers.",
    }
    if not queue["paused_at"]:
        reasons["paused"] = _HELD.get(circuit["class"], "")
    if circuit["class"] is None:
        reasons["circuit_open"] = (
            f"It was stopped by hand. `penstock circuit close {name}` lets jobs start again."
        )
    if circuit["state"] == "open":
        reasons["rate_limit"] = f"The provider asked to wait; jobs start again {next_try}."
    if limit == 1:
        reasons["queue_limit"] = "Its only slot is taken; the next job starts when it is free."
    if circuit["refused"] >= NOTEWORTHY:
        reasons["ramping"] = (
            f"The provider refuses {circuit['refused_words']} of its calls; at most"
            f" {circuit['allowed'] or 0:,} jobs run at once, more with each answer."
        )
    return reasons.get(queue["waiting_for"])


def _since(moment: str | None, now: datetime) -> float:
    since = now if moment is None else datetime.fromisoformat(moment)
    return max(0.0, (now - since).total_seconds())


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that puts `q2` before `q10`."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)
