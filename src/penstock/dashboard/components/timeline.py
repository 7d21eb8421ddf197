"""What happened to a job, in order: its submit, each start with what it kept, its end."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.base import wording
from penstock.dashboard.components.sentences import OUTCOMES, error_words
from penstock.engine.jobs.info import JobInfo

_FINAL = frozenset({"succeeded", "failed", "cancelled"})
_GOOD = frozenset({"succeeded"})
_BAD = frozenset({"failed", "retried", "timed_out", "lost", "stuck"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    at: str | datetime | None
    title: str
    detail: str = ""
    mood: str = ""
    """good, bad, now or nothing: how it is shown."""
    worker: str | None = None
    length: str | None = None
    frames: Sequence[str] = ()
    """Where the error was raised: `file:line in function`."""


def timeline(job: JobInfo) -> list[Happening]:
    return list(_happenings(job))


def _happenings(job: JobInfo) -> Iterator[Happening]:
    again = " as a retry of an earlier job" if job.retry_of else ""
    yield Happening(at=job.created_at, title=f"Submitted{again}")
    shown = {start["attempt"] for start in job.attempts}
    if job.attempt > len(shown) and shown and min(shown) > 1:
        yield Happening(
            at=None, title=f"{wording.count(min(shown) - 1, 'earlier attempt')}, not shown here"
        )
    for start in job.attempts:
        kept = list(_kept(job, start["attempt"]))
        if kept:
            # Else the line of its end says it all.
            yield Happening(at=start["started_at"], title=f"Attempt {start['attempt']} began")
        yield from kept
        yield _ended(start)
    if job.status in ("running", "awaiting"):
        yield _running(job)
        yield from _kept(job, job.attempt)
    elif job.status == "scheduled":
        yield Happening(at=job.run_at, title=f"Starts {wording.ahead(job.run_at)}")
    elif job.finished_at and not any(one["outcome"] in _FINAL for one in job.attempts):
        yield _end(job)


def _ended(start: Mapping[str, Any]) -> Happening:
    outcome = start["outcome"]
    error = {"class": start["error_class"], "message": start["message"]}
    return Happening(
        at=start["ended_at"],
        title=f"Attempt {start['attempt']} {OUTCOMES.get(outcome, outcome)}",
        detail=error_words(error) if outcome not in _GOOD else "",
        mood="good" if outcome in _GOOD else "bad" if outcome in _BAD else "",
        worker=start["worker"],
        length=wording.between(start["started_at"], start["ended_at"]),
        frames=start["frames"],
    )


def _running(job: JobInfo) -> Happening:
    stage = job.stage_label or job.stage
    since = wording.age(job.stage_at)
    doing = "was handed over" if job.status == "awaiting" else "runs"
    return Happening(
        at=job.started_at,
        title=f"Attempt {job.attempt} {doing}",
        detail=f"{stage}, for {since}" if stage and since else stage or "",
        mood="now",
        worker=job["worker"],
        length=wording.age(job.started_at),
    )


def _kept(job: JobInfo, attempt: int) -> Iterator[Happening]:
    for step in job["steps"]:
        if step["attempt"] == attempt:
            yield Happening(
                at=step["kept_at"],
                title=f"Step {step['name']} done",
                detail="kept: later attempts do not repeat it",
            )


def _end(job: JobInfo) -> Happening:
    how = "Failed" if job.status == "failed" else "Cancelled"
    return Happening(
        at=job.finished_at,
        title=f"{how} while it waited",
        detail=error_words(job.error),
        mood="bad" if job.status == "failed" else "",
    )
