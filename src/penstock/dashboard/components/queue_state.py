"""How a queue stands: what waits in it, for what, and for how long, in words."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.base import wording

# Jobs of a queue that nothing stops start within moments; who waits longer has nobody.
UNEXPLAINED_SECONDS = 30
_EXACT_DIGITS = 2

# From which share of refused calls on operators are told of it.
NOTEWORTHY = 0.05

# How much it has to tell, the most first.
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

    def named(self, noun: str) -> str:
        """`1 job`, `about 26,000 jobs`."""
        return f"{self} {noun}" if self.jobs == 1 and not self.about else f"{self} {noun}s"


@dataclass(frozen=True, slots=True)
class Standing:
    name: str
    queued: Count
    scheduled: Count
    running: Count
    awaiting: Count
    due: Count
    """Those of the scheduled whose time has come, which the next claim will see."""
    limit: int | None
    rate: str | None
    style: str
    """Of its state: the badge's class, and what it says."""
    state: str
    reason: str | None
    """Why something waits, and what can be done; commands in backticks."""
    waits_seconds: float | None
    """How long the oldest has been due."""
    oldest_at: str | None
    ended: int
    failed: int
    rank: int
    unexplained: bool
    """It waits for long, and nothing that the database knows of keeps it."""
    paused_seconds: float | None


def standings(found: dict[str, Any]) -> list[Standing]:
    """Those with something to tell first, then by name: so that rows do not jump about."""
    now = datetime.fromisoformat(found["now"])
    ended = found["ended"]["queues"]
    rows = [_standing(queue, ended.get(str(queue["id"]), {}), now) for queue in found["queues"]]
    return sorted(rows, key=lambda row: (row.rank, _natural(row.name)))


def waiting(rows: Sequence[Standing]) -> Count:
    """What could start now, if nothing kept it."""
    return total(rows, "queued") + total(rows, "due")


def total(rows: Sequence[Standing], status: str) -> Count:
    return sum((getattr(row, status) for row in rows), Count(0))


def rounded(jobs: int) -> int:
    """To two digits: an estimate is not better than that."""
    size: int = 10 ** max(0, len(str(jobs)) - _EXACT_DIGITS)
    return round(jobs / size) * size


def _standing(queue: dict[str, Any], ended: dict[str, int], now: datetime) -> Standing:
    jobs, about = queue["jobs"], queue["about"]
    counts = {
        status: Count(jobs.get(status, 0), status in about)
        for status in ("queued", "scheduled", "running", "awaiting")
    }
    waits = _since(queue["oldest_at"], now)
    why = queue["waiting_for"]
    due = Count(queue["due"])
    waiting = bool(counts["queued"] + due)
    at_work = bool(counts["running"] + counts["awaiting"])
    lingers = waiting and why is None and (waits or 0) >= UNEXPLAINED_SECONDS
    unexplained = lingers and not at_work
    style, state = _state(queue)
    # A queue that no worker serves is in trouble only if something waits in it.
    is_stopped = why in ("no_worker", "no_handler") or (
        style in ("off", "bad") and not _is_unserved(queue)
    )
    rank = IDLE
    if waiting and (is_stopped or unexplained):
        rank = STOPPED
    elif is_stopped:
        rank = HELD
    elif waiting or at_work:
        rank = BUSY
    return Standing(
        name=queue["name"],
        **counts,
        due=due,
        limit=queue["limit"],
        rate=queue["rate"],
        style=style,
        state=state,
        reason=_reason(queue, at_work=at_work, lingers=lingers) if waiting else None,
        waits_seconds=waits if waiting else None,
        oldest_at=queue["oldest_at"] if waiting else None,
        ended=ended.get("ended", 0),
        failed=ended.get("failed", 0),
        rank=rank,
        unexplained=unexplained,
        paused_seconds=_since(queue["paused_at"], now),
    )


def _is_unserved(queue: dict[str, Any]) -> bool:
    """Nothing but a worker is missing."""
    may_start = not queue["paused_at"] and queue["circuit"]["state"] != "open"
    return may_start and queue["drive"] == "worker" and not queue["served"]


def _state(queue: dict[str, Any]) -> tuple[str, str]:
    circuit = queue["circuit"]
    if queue["paused_at"]:
        return "off", "Paused"
    if _is_unserved(queue):
        return ("bad" if queue["waiting_for"] else "off"), "No worker"
    if queue["waiting_for"] == "no_handler":
        return "bad", "No handler"
    match circuit["state"], circuit["class"]:
        case "open", None:
            return "off", "Stopped by hand"
        case "open", "auth" | "quota" | "config":
            return "bad", "Held: needs you"
        case "open", "rate_limited":
            return "running", "Asked to wait"
        case "open", _:
            return "bad", "Provider away"
        case "ramping", _ if circuit["refused"] >= NOTEWORTHY:
            return "running", "Refuses calls"
        case "ramping", _:
            return "running", "Coming back"
        case _:
            return "ok", "Ready"


def _reason(queue: dict[str, Any], *, at_work: bool, lingers: bool) -> str | None:
    """`lingers`: it waits although the database knows nothing that keeps it."""
    said = _stopped(queue) or _limited(queue)
    if said or not lingers:
        return said
    if at_work:
        return "The workers run as many as they take on at once. More of them would start more."
    if queue["drive"] != "worker":
        return "No call has come to run them. The next submit, or any standing server, begins one."
    return "Nothing stops it, and none of it runs: the workers are busy with other queues."


def _stopped(queue: dict[str, Any]) -> str | None:
    """Nothing of it starts."""
    circuit, name = queue["circuit"], queue["name"]
    match queue["waiting_for"]:
        case "paused" if queue["paused_at"]:
            why = f" ({queue['paused_reason']})" if queue["paused_reason"] else ""
            return f"It is paused{why}. `penstock resume {name}` lets its jobs start again."
        case "paused":
            return _HELD[circuit["class"]]
        case "no_worker":
            return "No worker that serves it is alive. Start one: `penstock worker`."
        case "no_handler":
            return (
                "No worker has a handler for the kinds of job that wait in it. Start one whose app"
                " declares them, or cancel these jobs."
            )
        case "circuit_open" if circuit["class"] is None:
            return f"It was stopped by hand. `penstock circuit close {name}` lets jobs start again."
        case "circuit_open":
            return (
                "The provider does not answer; jobs go on by themselves when it does."
                f" The next try is {wording.ahead(circuit['next_at'])}."
            )
        case _:
            return None


def _limited(queue: dict[str, Any]) -> str | None:
    """It goes on as fast as it may."""
    circuit, limit = queue["circuit"], queue["limit"]
    match queue["waiting_for"]:
        case "rate_limit" if circuit["state"] == "open":
            return f"The provider asked to wait; jobs go on {wording.ahead(circuit['next_at'])}."
        case "rate_limit":
            return f"Its rate of {queue['rate']} is used up for the moment; it goes on by itself."
        case "queue_limit" if limit == 1:
            return "Its only place is taken; the next job starts when that one ends."
        case "queue_limit":
            return f"All {limit:,} places are taken; the next job starts when one ends."
        case "account_limit":
            return "The accounts whose jobs wait run as many as their plans allow."
        case "ramping" if circuit["refused"] >= NOTEWORTHY:
            return (
                f"The provider refuses {circuit['refused_words']} of its calls; at most"
                f" {circuit['allowed']:,} jobs run at once, more with each answer."
            )
        case "ramping":
            return "The provider is back; jobs start more and more."
        case _:
            return None


_HELD = {
    "auth": "The provider refuses the key. Correct it, restart the workers, then resume the queue.",
    "quota": "The provider's quota or credit is used up. Raise it, then resume the queue.",
    "config": "The provider does not know the model, or refuses a setting. Correct the kind of "
    "job, restart the workers, then resume the queue.",
}


def _since(moment: str | None, now: datetime) -> float | None:
    if moment is None:
        return None
    return max(0.0, (now - datetime.fromisoformat(moment)).total_seconds())


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """`q2` before `q10`."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)
