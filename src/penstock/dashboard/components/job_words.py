"""A job in words: its status, what it waits for, and what happened to it, in order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.base import wording
from penstock.dashboard.components.words import CLASSES, REASONS, WAITING, ago, capital
from penstock.engine.jobs.info import JobInfo

# A table shows this much of a message; the job's own page shows all of it.
_NOTE_CHARACTERS = 160
# The words and the style of each outcome of an attempt.
OUTCOMES = {
    "succeeded": ("succeeded", "good"),
    "failed": ("failed; not tried again", "bad"),
    "cancelled": ("was cancelled", ""),
    "retried": ("failed; tried again later", "bad"),
    "deferred": ("was deferred: the provider did not accept it; not counted as a failure", ""),
    "snoozed": ("was snoozed; not counted as a failure", ""),
    "released": ("was released by its worker; not counted as a failure", ""),
    "timed_out": ("exceeded its timeout; tried again later", "bad"),
    "lost": ("lost its worker; recovered", "bad"),
    "stuck": ("reported no progress; recovered", "bad"),
}


def error_words(error: Mapping[str, Any] | None) -> str:
    """Return class and message in words: `the handler raised an error: ValueError: …`."""
    if not error:
        return ""
    known = CLASSES.get(error.get("class") or "")
    message = (error.get("message") or "").strip()
    if not known or message == known or error.get("class") in ("cancelled", "expired"):
        return message or known or ""
    return f"{known}: {message}" if message else known


def note(job: JobInfo) -> str:
    """Return what a table shows beside the status of a job; empty if the status is enough."""
    match job.status:
        case "queued":
            text = WAITING.get(job.waiting_for or "", "")
        case "scheduled":
            text = _until(job)
        case "running" | "awaiting":
            text = _doing(job)
        case "succeeded":
            text = ""
        case _:
            text = error_words(job.error)
    return text if len(text) <= _NOTE_CHARACTERS else text[: _NOTE_CHARACTERS - 1] + "…"


def took(job: JobInfo) -> str:
    """Return how long its last attempt ran, or has run so far."""
    if job.finished_at:
        return wording.between(job.started_at, job.finished_at) or ""
    running = job.status in ("running", "awaiting")
    return (wording.age(job.started_at) or "") if running else ""


def headline(job: JobInfo) -> str:
    """Return its status in a sentence: `Running for 12 s: Tier 1 scanning`."""
    match job.status:
        case "queued":
            position = wording.queue_position(job.position, job.eta_seconds)
            return f"Queued: {position}" if position else "Queued"
        case "scheduled":
            return capital(_until(job))
        case "running" | "awaiting":
            return _at_work(job)
        case "succeeded":
            length = wording.between(job.started_at, job.finished_at)
            tries = f" in attempt {job.attempt}" if job.attempt > 1 else ""
            return f"Succeeded{f' after {length}' if length else ''}{tries}"
        case "cancelled":
            return f"Cancelled {ago(job.finished_at)}"
        case _:
            return _failed(job)


def reason(job: JobInfo) -> str:
    """Return why it does not run yet, as a sentence; empty if the headline says it."""
    known = WAITING.get(job.waiting_for or "")
    return f"{capital(known)}." if known and job.waiting_for not in ("callback", "backoff") else ""


def _failed(job: JobInfo) -> str:
    tries = wording.count(job.attempt, "attempt")
    text = f"Failed after {tries}" if job.attempt else "Failed before its first attempt"
    error = job.error or {}
    # The reason says less than what happened in the last attempt, so it comes in brackets.
    if error.get("reason") in REASONS and error["reason"] != "expired":
        text = f"{text} ({REASONS[error['reason']]})"
    why = error_words(error)
    return f"{text}: {why}" if why else text


def _at_work(job: JobInfo) -> str:
    length, stage = wording.age(job.started_at), job.stage_label or job.stage
    text = f"Running for {length}"
    if job.status == "awaiting":
        text = f"Dispatched {length} ago, waiting for the callback"
    stop = "Stop requested. " if job.cancel_requested else ""
    return f"{stop}{text}: {stage}" if stage else f"{stop}{text}"


def _doing(job: JobInfo) -> str:
    text = job.stage_label or job.stage or WAITING.get(job.waiting_for or "", "")
    return f"stop requested; {text}".removesuffix("; ") if job.cancel_requested else text


def _until(job: JobInfo) -> str:
    due = wording.ahead(job.run_at)
    if job.waiting_for != "backoff":
        return f"starts {due}"
    why = error_words(job.error)
    return f"next attempt {due}: {why}" if why else f"next attempt {due}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a job."""

    at: str | datetime | None
    title: str
    detail: str = ""
    mood: str = ""
    """The style: good, bad, now or empty."""
    worker: str | None = None
    length: str | None = None
    frames: Sequence[str] = ()
    """The lines at which the error was raised: `file:line in function`."""


def timeline(job: JobInfo) -> Iterator[Event]:
    """Yield what happened to a job, in order: submit, attempts with their steps, outcome."""
    again = " as a retry of an earlier job" if job.retry_of else ""
    yield Event(at=job.created_at, title=f"Submitted{again}")
    first = min((attempt["attempt"] for attempt in job.attempts), default=1)
    if first > 1:
        yield Event(at=None, title=f"{wording.count(first - 1, 'earlier attempt')}, not shown here")
    for attempt in job.attempts:
        number = attempt["attempt"]
        kept = list(_kept(job, number))
        if kept:
            # Without steps, the line of the outcome is enough.
            yield Event(at=attempt["started_at"], title=f"Attempt {number} started")
        yield from kept
        words, mood = OUTCOMES.get(attempt["outcome"], (attempt["outcome"], ""))
        error = {"class": attempt["error_class"], "message": attempt["message"]}
        yield Event(
            at=attempt["ended_at"],
            title=f"Attempt {number} {words}",
            detail="" if mood == "good" else error_words(error),
            mood=mood,
            worker=attempt["worker"],
            length=wording.between(attempt["started_at"], attempt["ended_at"]),
            frames=attempt["frames"],
        )
    finals = ("succeeded", "failed", "cancelled")
    if job.status in ("running", "awaiting"):
        stage, since = job.stage_label or job.stage, wording.age(job.stage_at)
        doing = "was dispatched" if job.status == "awaiting" else "is running"
        yield Event(
            at=job.started_at,
            title=f"Attempt {job.attempt} {doing}",
            detail=f"{stage}, for {since}" if stage and since else stage or "",
            mood="now",
            worker=job["worker"],
            length=wording.age(job.started_at),
        )
        yield from _kept(job, job.attempt)
    elif job.status == "scheduled":
        yield Event(at=job.run_at, title=f"Starts {wording.ahead(job.run_at)}")
    elif job.finished_at and not any(attempt["outcome"] in finals for attempt in job.attempts):
        yield Event(
            at=job.finished_at,
            title=f"{'Failed' if job.status == 'failed' else 'Cancelled'} while waiting",
            detail=error_words(job.error),
            mood="bad" if job.status == "failed" else "",
        )


def _kept(job: JobInfo, number: int) -> Iterator[Event]:
    for step in job["steps"]:
        if step["attempt"] == number:
            yield Event(
                at=step["kept_at"],
                title=f"Step {step['name']} finished",
                detail="Its result is kept; later attempts do not repeat it.",
            )
