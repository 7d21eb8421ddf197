"""A job in a sentence: how it stands, what it waits for, how an attempt of it ended."""

from collections.abc import Mapping
from typing import Any

from penstock.base import wording
from penstock.dashboard.components.words import CLASSES, REASONS, WAITING, ago
from penstock.engine.jobs.info import JobInfo

# A table shows so much of a message; the job's own page shows all of it.
_NOTE_CHARACTERS = 160

_SAID = frozenset({"callback", "backoff"})

OUTCOMES = {
    "succeeded": "succeeded",
    "failed": "failed for good",
    "cancelled": "was cancelled",
    "retried": "failed; to be tried again",
    "deferred": "put off: the provider could not take it; not counted as a failure",
    "snoozed": "put off for a while; not counted as a failure",
    "released": "given back by its worker; not counted as a failure",
    "timed_out": "took longer than it may; to be tried again",
    "lost": "its worker died; recovered",
    "stuck": "gave no sign of life; recovered",
}


def error_words(error: Mapping[str, Any] | None) -> str:
    """Class and message as a person says it: `the handler raised an error: ValueError: …`."""
    if not error:
        return ""
    known = CLASSES.get(error.get("class") or "")
    message = (error.get("message") or "").strip()
    if not known or message == known or error.get("class") in ("cancelled", "expired"):
        return message or known or ""
    return f"{known}: {message}" if message else known


def note(row: JobInfo) -> str:
    """What a table says beside the state of a job; nothing where the state says it all."""
    match row.status:
        case "queued":
            said = WAITING.get(row.waiting_for or "", "")
        case "scheduled":
            said = _until(row)
        case "running" | "awaiting":
            said = _doing(row)
        case "succeeded":
            said = ""
        case _:
            said = error_words(row.error)
    return said if len(said) <= _NOTE_CHARACTERS else said[: _NOTE_CHARACTERS - 1] + "…"


def took(row: JobInfo) -> str:
    """How long it ran, or has run so far; of its last start."""
    if row.finished_at:
        return wording.between(row.started_at, row.finished_at) or ""
    running = row.status in ("running", "awaiting")
    return (wording.age(row.started_at) or "") if running else ""


def headline(job: JobInfo) -> str:
    """How it stands: `Running for 12 s: Tier 1 scanning`."""
    match job.status:
        case "queued":
            where = wording.place(job.position, job.eta_seconds)
            said = f"Queued: {where}" if where else "Queued"
        case "scheduled":
            said = _capital(_until(job))
        case "running" | "awaiting":
            said = _at_work(job)
        case "succeeded":
            length = wording.between(job.started_at, job.finished_at)
            tries = f" in attempt {job.attempt}" if job.attempt > 1 else ""
            said = f"Succeeded{f' after {length}' if length else ''}{tries}"
        case "cancelled":
            said = f"Cancelled {ago(job.finished_at)}"
        case _:
            said = _failed(job)
    return said


def reason(job: JobInfo) -> str:
    """Why it does not run yet, as a sentence; nothing where the headline says it."""
    known = WAITING.get(job.waiting_for or "")
    return f"{_capital(known)}." if known and job.waiting_for not in _SAID else ""


def _failed(job: JobInfo) -> str:
    tries = wording.count(job.attempt, "attempt")
    begun = f"Failed after {tries}" if job.attempt else "Failed before its first attempt"
    error = job.error or {}
    why = error_words(error)
    out = REASONS.get(error.get("reason") or "")
    # "All attempts are used" says less than what happened in the last of them.
    if out and error.get("reason") != "expired":
        begun = f"{begun} ({out})"
    return f"{begun}: {why}" if why else begun


def _at_work(job: JobInfo) -> str:
    length = wording.age(job.started_at)
    if job.status == "awaiting":
        begun = f"Handed over {length} ago, and waits for the callback"
    else:
        begun = f"Running for {length}"
    stage = job.stage_label or job.stage
    begun = f"{begun}: {stage}" if stage else begun
    return f"Asked to stop. {begun}" if job.cancel_requested else begun


def _doing(row: JobInfo) -> str:
    said = row.stage_label or row.stage or WAITING.get(row.waiting_for or "", "")
    return f"asked to stop; {said}".removesuffix("; ") if row.cancel_requested else said


def _until(row: JobInfo) -> str:
    start = wording.ahead(row.run_at)
    if row.waiting_for == "backoff":
        why = error_words(row.error)
        return f"tried again {start}: {why}" if why else f"tried again {start}"
    return f"starts {start}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
