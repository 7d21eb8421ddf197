"""The state of a queue: what waits in it, for what, and for how long, in words."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.base import wording

# Jobs of a queue that nothing stops start within moments; who waits longer has nobody.
UNEXPLAINED_SECONDS = 30
_EXACT_DIGITS = 2

# From which share of refused calls on operators are alerted.
NOTEWORTHY = 0.05

# How much there is to report, the most first.
STOPPED, HELD, BUSY, IDLE = range(4)


@dataclass(frozen=True, slots=True)
class Count:
    """How many; `about`: an estimate, since to count them would take long."""

    jobs: int
    about: bool = False

    def __add__(self, other: "Count") -> "Count":
        return Count(self.jobs + other.jobs, self.about or other.about)

    def __bool__(self) -> bool:
        return self.jobs > 0

    def __str__(self) -> str:
        """`1,204`, `about 26,000`."""
        return f"about {self.figure}" if self.about else self.figure

    @property
    def figure(self) -> str:
        return f"{rounded(self.jobs) if self.about else self.jobs:,}"


@dataclass(frozen=True, slots=True)
class QueueState:
    queue: dict[str, Any]
    """As SQL reports it."""
    queued: Count
    scheduled: Count
    running: Count
    awaiting: Count
    due: Count
    """Those of the scheduled whose time has come, which the next claim will see."""
    style: str
    """Of its state: the badge's class, and what it says."""
    state: str
    reason: str | None
    """Why something waits, and what can be done; commands in backticks."""
    oldest_at: str | None
    """Since when the oldest is due; None: nothing waits."""
    waits_seconds: float
    rank: int
    unexplained: bool
    """It waits for long, and nothing that the database knows of keeps it."""
    paused_seconds: float
    """0: it is not paused."""

    @property
    def name(self) -> str:
        return str(self.queue["name"])

    @property
    def is_troubled(self) -> bool:
        """Something stops it, or nothing explains why its jobs wait."""
        return self.rank <= HELD


def queue_states(queues: Iterable[dict[str, Any]], now: str) -> list[QueueState]:
    """Those with something to report first, then by name: so that rows do not jump about."""
    rows = [_queue_state(queue, datetime.fromisoformat(now)) for queue in queues]
    return sorted(rows, key=lambda row: (row.rank, _natural(row.name)))


def waiting(rows: Sequence[QueueState]) -> Count:
    """What could start now, if nothing kept it."""
    return total(rows, "queued") + total(rows, "due")


def total(rows: Sequence[QueueState], status: str) -> Count:
    return sum((getattr(row, status) for row in rows), Count(0))


def rounded(jobs: int) -> int:
    """To two digits: an estimate is not better than that."""
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
    # A queue that no worker serves is in trouble only if something waits in it.
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
    """Nothing but a worker is missing."""
    may_start = not queue["paused_at"] and queue["circuit"]["state"] != "open"
    return may_start and queue["drive"] == "worker" and not queue["served"]


def _badge(queue: dict[str, Any]) -> tuple[str, str]:
    """The style and the words of its state: of the first that holds."""
    circuit, why = queue["circuit"], queue["waiting_for"]
    is_open, cls = circuit["state"] == "open", circuit["class"]
    is_ramping = circuit["state"] == "ramping"
    states = (
        (queue["paused_at"], "off", "Paused"),
        (_is_unserved(queue), "bad" if why else "off", "No worker"),
        (why == "no_handler", "bad", "No handler"),
        (is_open and cls is None, "off", "Stopped by hand"),
        (is_open and cls in _HELD, "bad", "Held: needs you"),
        (is_open and cls == "rate_limited", "running", "Asked to wait"),
        (is_open, "bad", "Provider away"),
        (is_ramping and circuit["refused"] >= NOTEWORTHY, "running", "Refuses calls"),
        (is_ramping, "running", "Coming back"),
        (True, "ok", "Ready"),
    )
    return next((style, words) for holds, style, words in states if holds)


def _lingering(queue: dict[str, Any], at_work: bool) -> str:  # noqa: FBT001
    """It waits although the database knows nothing that keeps it."""
    if at_work:
        return "The workers run as many as they take on at once. More of them would start more."
    if queue["drive"] != "worker":
        return "No call has come to run them. The next submit, or any standing server, begins one."
    return "Nothing stops it, and none of it runs: the workers are busy with other queues."


_HELD = {
    "auth": "The provider refuses the key. Correct it, restart the workers, then resume the queue.",
    "quota": "The provider's quota or credit is used up. Raise it, then resume the queue.",
    "config": "The provider does not know the model, or refuses a setting. Correct the kind of "
    "job, restart the workers, then resume the queue.",
}


def _reason(queue: dict[str, Any]) -> str | None:
    """Why nothing of it starts, or why no more than that; None: the database knows of nothing."""
    circuit, name, limit = queue["circuit"], queue["name"], queue["limit"]
    note = f" ({queue['paused_reason']})" if queue["paused_reason"] else ""
    next_try = wording.ahead(circuit["next_at"])
    reasons = {
        "paused": f"It is paused{note}. `penstock resume {name}` lets its jobs start again.",
        "no_worker": "No worker that serves it is alive. Start one: `penstock worker`.",
        "no_handler": "No worker has a handler for the kinds of job that wait in it. Start one"
        " whose app declares them, or cancel these jobs.",
        "circuit_open": "The provider does not answer; jobs go on by themselves when it does."
        f" The next try is {next_try}.",
        "rate_limit": f"Its rate of {queue['rate']} is used up for the moment; it goes on by"
        " itself.",
        "queue_limit": f"All {limit or 0:,} slots are taken; the next job starts when one ends.",
        "account_limit": "The accounts whose jobs wait run as many as their plans allow.",
        "ramping": "The provider is back; jobs start more and more.",
    }
    if not queue["paused_at"]:
        reasons["paused"] = _HELD.get(circuit["class"], "")
    if circuit["class"] is None:
        reasons["circuit_open"] = (
            f"It was stopped by hand. `penstock circuit close {name}` lets jobs start again."
        )
    if circuit["state"] == "open":
        reasons["rate_limit"] = f"The provider asked to wait; jobs go on {next_try}."
    if limit == 1:
        reasons["queue_limit"] = "Its only slot is taken; the next job starts when that one ends."
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
    """`q2` before `q10`."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)
