"""A submission as JSON for its author: state, message, and what happens next.

| the job                                | state                                      |
|----------------------------------------|--------------------------------------------|
| waiting, or just started               | RECEIVED                                   |
| running, or interrupted in a tier      | TIER1_SCANNING, TIER2_SCANNING             |
| succeeded without findings             | PUBLISHED                                  |
| succeeded with findings                | REJECTED, reason findings, fault author    |
| failed, or was cancelled               | REJECTED, the job's reason, fault platform |
"""

from datetime import UTC, datetime
from typing import Any

from scanner.ends import FINDINGS, End, end_of, fault_of
from scanner.store import Submission, Told

SCANNING = {"TIER1_SCANNING": "Tier 1", "TIER2_SCANNING": "Tier 2"}
ENDED = ("PUBLISHED", "REJECTED")
LIVE = ("scheduled", "queued", "running", "awaiting")

AGAIN = "You can submit it again."
OURS = f"That is our fault: nothing is wrong with your package as far as we know. {AGAIN}"
NOBODY = "Nobody is at work at the moment; it goes on by itself."
_HELD_UP = {
    "no_worker": NOBODY,
    "no_handler": NOBODY,
    "paused": "The scanner has a break; it goes on by itself.",
    "queue_limit": "Others are being scanned; yours is next when one of them ends.",
}
# The outcome of a submission whose job was removed by hand.
_LOST = End("REJECTED", "lost", [], None)


def shown(submission: Submission, job: Told | None) -> dict[str, Any]:
    end = submission.end
    if end is None and job is None:
        end = _LOST
    if end is None and job is not None and job["status"] not in LIVE:
        # It has finished, and our row is not updated yet.
        end = end_of(job["status"], job["result"], job["error"])
    live = job if end is None else None
    stage = live["stage"] if live and live["stage"] in SCANNING else "RECEIVED"
    recovery = _recovery(job)
    return {
        "id": str(submission.id),
        "name": submission.package.name,
        "state": end.state if end else stage,
        "reason": end.reason if end else None,
        "fault": fault_of(end.reason) if end else None,
        "message": _end_sentence(end, recovery) if end else _sentence(live or {}, stage),
        "stage": job["stage"] if job and job["stage"] in SCANNING else "RECEIVED",
        "stageSince": live and live["stage_at"],
        "position": live and live["position"],
        "progress": live and live["progress"] and _progress(live["progress"]),
        "staleness": _staleness(live, stage),
        "recovery": recovery,
        "findings": end.findings if end else [],
        "attempts": [_attempt(one) for one in job["attempts"]] if job else [],
        "again": str(submission.again) if submission.again else None,
        "createdAt": _moment(submission.created_at),
        "endedAt": submission.ended_at and _moment(submission.ended_at),
    }


def listed(submission: Submission, job: Told | None) -> dict[str, Any]:
    """A line of a list."""
    kept = ("id", "name", "state", "reason", "createdAt", "endedAt")
    told = shown(submission, job)
    return {name: told[name] for name in kept}


def _staleness(job: Told | None, stage: str) -> dict[str, Any]:
    told = job and job["staleness"]
    return {
        "stale": bool(told),
        "staleSince": told["since"] if told else None,
        "staleStage": stage if told else None,
        "message": told["message"] if told else None,
    }


def _recovery(job: Told | None) -> dict[str, Any] | None:
    """The budget; None once the job is pruned."""
    if job is None:
        return None
    told = job["recovery"]
    return {
        "count": told["count"],
        "max": told["max"],
        "lastRetryAt": told["last_at"],
        "nextRetryAfter": told["next_at"],
    }


def _progress(told: Told) -> dict[str, Any]:
    return {"done": told["done"], "total": told["total"]}


def _attempt(told: Told) -> dict[str, Any]:
    return {
        "attempt": told["attempt"],
        "outcome": told["outcome"],
        "classification": told["error_class"],
        "startedAt": told["started_at"],
        "endedAt": told["ended_at"],
    }


def _sentence(job: Told, stage: str) -> str:
    if job["status"] in ("running", "awaiting"):
        return f"{SCANNING[stage]} scanning…" if stage in SCANNING else "The scan begins."
    held_up = _HELD_UP.get(job["waiting_for"] or "", "")
    if job["attempt"] > 0:
        where = f" in {SCANNING[stage].lower()}" if stage in SCANNING else ""
        return f"The scan was broken off{where} and starts again by itself. {held_up}".strip()
    place = f" It is #{job['position']} in the queue." if job["position"] else ""
    return f"We have your package.{place} {held_up}".strip()


def _end_sentence(end: End, recovery: dict[str, Any] | None) -> str:
    match end.reason:
        case None:
            return "Nothing was found: your package is published."
        case reason if reason == FINDINGS:
            number = len(end.findings)
            return f"The scan found {'one thing' if number == 1 else f'{number} things'}."
        case "stuck_exhausted":
            count = recovery["count"] if recovery else 0
            often = f", and was started again {count} times" if count else ""
            return f"We could not scan your package: the scan broke off{often}. {OURS}"
        case "cancelled":
            return f"The scan was stopped by us. {OURS}"
        case _:
            return f"We could not scan your package. {OURS}"


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
