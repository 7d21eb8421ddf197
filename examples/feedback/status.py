"""The status of a submission: one of the five statuses of the document, and a sentence for people.

| job                                   | feedback_status |
|---------------------------------------|-----------------|
| queued, or not due for the first time | pending         |
| running, awaiting                     | processing      |
| scheduled again after a failure       | retry           |
| succeeded                             | completed       |
| failed, cancelled                     | failed          |
"""

import json
from contextlib import suppress
from datetime import datetime
from typing import Any

from feedback.store import Row

SAFE = "Deine Abgabe ist sicher und wird automatisch ausgewertet."
OUTAGE = f"Die KI ist gerade nicht erreichbar. {SAFE}"
PAUSED = f"Die Auswertung macht gerade Pause. {SAFE}"
NO_WORKER = f"Die Auswertung läuft gerade noch nicht. {SAFE}"
SWITCHED_OFF = "Die Auswertung ist gerade ausgeschaltet. Deine Abgabe ist gespeichert."
AGAIN = "Das hat noch nicht geklappt. Wir versuchen es automatisch noch einmal."
WORKING = "Wird gerade ausgewertet …"
WAITING = "Deine Abgabe ist da und wartet, bis sie dran ist."
DONE = "Deine Rückmeldung ist da."
STALE = "Das dauert heute länger als sonst. Du musst nichts tun, wir bleiben dran."
FAILED = (
    "Das hat leider nicht geklappt. Dein Text ist noch da: Gib ihn noch einmal ab oder frag deine "
    "Lehrkraft."
)
TOO_LONG = "Dein Text ist zu lang für die KI. Kürze ihn und gib ihn noch einmal ab."
REFUSED = "Zu diesem Text konnte die KI nichts sagen. Sprich bitte mit deiner Lehrkraft."
TAKEN_BACK = "Du hast die Abgabe zurückgezogen. Dein Text ist noch da: Du kannst ihn überarbeiten."

FINISHED = ("completed", "failed")
_WHY = {
    "cancelled": TAKEN_BACK,
    "input_too_long": TOO_LONG,
    "input_truncated": TOO_LONG,
    "refused": REFUSED,
}
_TRIED_AGAIN = ("retried", "timed_out")
_HELD_UP = {
    "circuit_open": OUTAGE,
    "paused": PAUSED,
    "rate_limit": OUTAGE,
    "no_worker": NO_WORKER,
    "no_handler": NO_WORKER,
}


def now(row: Row) -> Row:
    """Return the row with the values of its job: all columns of the document, as of now."""
    job: dict[str, Any] | None = row["job"]
    if row["feedback_status"] in FINISHED or job is None:
        return {**row, "queue_position": None}
    tried_again = [one["ended_at"] for one in job["attempts"] if one["outcome"] in _TRIED_AGAIN]
    status = _word(job)
    result = job["result"] if isinstance(job["result"], dict) else {}
    finished = status in FINISHED
    return {
        **row,
        "feedback_status": status,
        "retry_count": job["failures"],
        "last_retry_at": _moment(tried_again[-1]) if tried_again else None,
        "processing_started_at": _moment(job["started_at"]),
        "queue_position": job.get("position"),
        "feedback": str(result.get("text", "")).strip() if status == "completed" else None,
        "error_class": (job["error"] or {}).get("class") or "cancelled"
        if status == "failed"
        else None,
        "finished_at": _moment(job["finished_at"]) if finished else None,
    }


def shown(row: Row) -> dict[str, Any]:
    """Return the same as JSON for a page."""
    found = now(row)
    job = row["job"] or {}
    status = found["feedback_status"]
    waits_for = job.get("waiting_for")
    # During an outage the ETA is unknown, so none is shown.
    held_up = status in ("pending", "retry") and (waits_for in _HELD_UP or not job)
    return {
        "id": found["id"],
        "task": found["task"],
        "answer": found["answer"],
        "feedback_status": status,
        "message": _sentence(status, waits_for, found, job),
        "queue_position": None if held_up else found["queue_position"],
        "wait_seconds": None if held_up else job.get("eta_seconds"),
        "waiting_for": waits_for,
        "held_up": held_up,
        "stale": STALE if (job.get("staleness") or {}).get("stale") else None,
        "so_far": _words(job.get("so_far") or ""),
        "feedback": found["feedback"],
        "retry_count": found["retry_count"],
        "last_retry_at": _written(found["last_retry_at"]),
        "processing_started_at": _written(found["processing_started_at"]),
        "next_try_at": job.get("run_at") if status == "retry" and not held_up else None,
        "created_at": _written(found["created_at"]),
        "finished_at": _written(found["finished_at"]),
    }


def _word(job: dict[str, Any]) -> str:
    match job["status"]:
        case "running" | "awaiting":
            return "processing"
        case "succeeded":
            return "completed"
        case "failed" | "cancelled":
            return "failed"
        case "scheduled" if job["attempt"] > 0:
            return "retry"
        case _:
            return "pending"


def _sentence(
    status: str, waits_for: str | None, found: dict[str, Any], job: dict[str, Any]
) -> str:
    match status:
        case "completed":
            return DONE
        case "failed":
            return _WHY.get(found["error_class"], FAILED)
        case "processing":
            return WORKING
        case _ if not job:
            return SWITCHED_OFF
        case _ if waits_for in _HELD_UP:
            return _HELD_UP[waits_for]
        case "retry":
            return AGAIN
        case _:
            return WAITING


def _words(so_far: str) -> str | None:
    """Return the output so far; if the model must answer in JSON, the text inside."""
    if not so_far.startswith("{"):
        return so_far or None
    for end in ("", "}", '"}'):
        with suppress(ValueError, KeyError):
            return str(json.loads(so_far + end)["text"]) or None
    return None


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _written(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
