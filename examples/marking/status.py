"""The status, message and mark of an answer, for the teacher.

| its newest job                              | status   |
|---------------------------------------------|----------|
| none                                        | unmarked |
| queued, or backing off                      | pending  |
| running, or dispatched                      | marking  |
| succeeded, and brought a mark               | marked   |
| failed, was cancelled, or brought no mark   | failed   |
"""

from datetime import UTC, datetime
from typing import Any

from marking.marks import Mark, mark_of
from marking.store import Row

STATUSES = ("unmarked", "pending", "marking", "marked", "failed")

AWAY = "The marking function does not answer at the moment; it goes on by itself."
BACK = "The marking function answers again; it is given more and more answers."
STOPPED = "Marking was stopped by hand; it goes on when it is started again."
NEEDS_SOMEBODY = "The marking function refuses the calls; those who run this have to see to it."
PAUSED = "The queue has been paused."
NO_WORKER = "Nobody is at work yet."
AGAIN = "That did not work yet; it is tried again by itself."
NO_MARK = "The function sent something that is no mark."
LOST = "There is no trace of it any more."
WHY_NOT = {
    "cancelled": "It was cancelled.",
    "expired": "It waited for too long.",
    "no_callback": "The function did not call back in time.",
    "timeout": "It took too long.",
    "unavailable": "The function did not answer.",
    "interrupted": "The connection to the function broke off.",
    "overloaded": "The function had too much to do.",
    "rate_limited": "The function had too much to do.",
}
FAILED = "It could not be marked."

_WORDS = {
    "scheduled": "pending",
    "queued": "pending",
    "running": "marking",
    "awaiting": "marking",
    "succeeded": "marked",
    "failed": "failed",
    "cancelled": "failed",
}
_HELD_UP = {
    "circuit_open": AWAY,
    "rate_limit": AWAY,
    "paused": PAUSED,
    "no_worker": NO_WORKER,
    "no_handler": NO_WORKER,
    "backoff": AGAIN,
}


def shown(row: Row) -> dict[str, Any]:
    """Return an answer with its mark or its newest job, as JSON for a page."""
    job: dict[str, Any] | None = row["job"]
    mark = None
    if row["score"] is not None:
        mark = Mark(row["score"], row["out_of"], row["feedback"])
    elif job is not None and job["status"] == "succeeded":
        # It has just finished, and its on_finish callback has not run yet.
        mark = mark_of(job["result"])
    status = "unmarked"
    if mark is not None:
        status = "marked"
    elif row["job_id"] is not None:
        status = _WORDS[job["status"]] if job is not None else "failed"
        status = "failed" if status == "marked" else status
    return {
        "id": str(row["id"]),
        "pupil": row["pupil"],
        "answer": row["answer"],
        "status": status,
        "message": _sentence(status, job),
        "score": mark and mark.score,
        "out_of": mark and mark.out_of,
        "feedback": mark and mark.feedback,
        "corrected": row["corrected_at"] is not None,
        "job_id": row["job_id"] and str(row["job_id"]),
        "job": _watched(job),
        "position": job["position"] if job and status == "pending" else None,
        "attempt": job["attempt"] if job else 0,
    }


def _watched(job: dict[str, Any] | None) -> dict[str, str] | None:
    """Return the job for <penstock-job>; None if it succeeded, because the page shows the mark."""
    if job is None or job["status"] == "succeeded":
        return None
    return {"src": f"/v1/jobs/{job['id']}"}


def held_up(queue: dict[str, Any]) -> str | None:
    """Return for a teacher why few or no jobs start; None if nothing is wrong."""
    circuit = queue["circuit"]
    if queue["paused"]:
        return f"{PAUSED} {queue['paused_reason'] or ''}".strip()
    match circuit["state"], circuit["class"]:
        case "open", None:
            return STOPPED
        case "open", "auth" | "quota" | "config":
            return NEEDS_SOMEBODY
        case "open", _:
            return AWAY
        case "ramping", _:
            return BACK
        case _:
            return None


def figures(throughput: list[dict[str, Any]], now: datetime) -> dict[str, Any]:
    """Return today's failures and the average duration of this queue only."""
    today = now.astimezone(UTC).date()
    succeeded = [one for one in throughput if one["outcome"] == "succeeded"]
    marked = sum(one["count"] for one in succeeded)
    return {
        "failed_today": sum(
            one["count"]
            for one in throughput
            if one["outcome"] == "failed" and datetime.fromisoformat(one["hour"]).date() == today
        ),
        "avg_processing_seconds": (
            sum(one["total_duration_ms"] for one in succeeded) / marked / 1000 if marked else None
        ),
    }


def totals(rows: list[dict[str, Any]]) -> dict[str, int]:
    statuses = [row["status"] for row in rows]
    return {status: statuses.count(status) for status in STATUSES}


def _sentence(status: str, job: dict[str, Any] | None) -> str:
    match status:
        case "pending" if job is not None:
            place = f"#{job['position']} in the queue." if job["position"] else "In the queue."
            return " ".join(filter(None, (place, _HELD_UP.get(job["waiting_for"]))))
        case "marking":
            return "Being marked …"
        case "failed":
            return _why_not(job)
        case _:
            return ""


def _why_not(job: dict[str, Any] | None) -> str:
    if job is None:
        return LOST
    if job["status"] == "succeeded":
        return NO_MARK
    return sentence_of(job["error"] or {})


def sentence_of(error: dict[str, Any]) -> str:
    """Return the function's public message, never that of an exception: that is for operators."""
    words = error["message"] if error.get("public") else FAILED
    return WHY_NOT.get(error.get("class", ""), words)
