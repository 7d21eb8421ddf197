"""An order as its customer sees it: one status, a sentence, a place for each picture, and credits.

| jobs of the order                     | status     |
|---------------------------------------|------------|
| none has begun                        | queued     |
| one has begun, and not all have ended | generating |
| all have ended, one with pictures     | completed  |
| all have ended, without               | failed, or cancelled where somebody wanted that |
"""

from typing import Any

from studio.errors import in_credits
from studio.kinds import SOLD
from studio.store import Row

ENDED = ("completed", "failed", "cancelled")
AWAY = "The image model does not answer at the moment; it goes on by itself."
PAUSED = "The studio has a break."
NO_WORKER = "Nobody is at work yet."
OWN_LIMIT = "It starts when another of your jobs ends."
AGAIN = "That did not work yet; it is tried again by itself."
WHY_NOT = {"refused": "The model refused this prompt.", "timeout": "It took too long."}
NONE_CAME = "Not one image came."

_WORDS = {
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "running": "generating",
    "awaiting": "generating",
}
# Neither in the history nor in the queue: somebody took it out by hand.
_LOST: Row = {
    "status": "failed",
    "size": 0,
    "pictures": [],
    "reserved": 0,
    "charged": 0,
    "refunded": 0,
    "why": None,
    "waiting_for": None,
    "completed_at": "",
}
_HELD_UP = {
    "circuit_open": AWAY,
    "rate_limit": AWAY,
    "paused": PAUSED,
    "no_worker": NO_WORKER,
    "account_limit": OWN_LIMIT,
    "backoff": AGAIN,
}


def shown(row: Row) -> dict[str, Any]:
    """An order with its jobs, for a page, as JSON."""
    each = SOLD[row["job_type"]].prices[row["quality"]]
    written = {one["job_id"]: one for one in row["ended"]}
    live = {one["id"]: one for one in row["live"]}
    parts = [_part(str(job), written, live, each) for job in row["job_ids"]]
    pictures: list[Row] = []
    for part in parts:
        pictures += _places(part, each, len(pictures))
    status = _status([part["status"] for part in parts])
    # As one: it begins when the first of its jobs does.
    waits = [job for job in live.values() if job["position"] is not None]
    first = (
        min(waits, key=lambda job: job["position"], default=None) if status == "queued" else None
    )
    money = {
        name: sum(part[name] for part in parts) for name in ("reserved", "charged", "refunded")
    }
    ready = sum("url" in one for one in pictures)
    return {
        "job_id": str(row["id"]),
        "job_type": row["job_type"],
        "prompt": row["prompt"],
        "images": row["images"],
        "quality": row["quality"],
        "jobs": len(parts),
        "status": status,
        "message": _sentence(status, (ready, row["images"]), money["refunded"], first, parts),
        "position": first and first["position"],
        "eta_seconds": first and first["eta_seconds"],
        "ready": ready,
        "pictures": pictures,
        "credits": money,
        "created_at": row["created_at"].isoformat(),
        "completed_at": max(part["completed_at"] for part in parts) if status in ENDED else None,
    }


def _part(job_id: str, written: dict[str, Row], live: dict[str, Row], each: int) -> Row:
    """One job of the order: from the history, or as it is now."""
    if (row := written.get(job_id)) is not None:
        return {
            "job": job_id,
            "status": row["status"],
            "size": row["images"],
            "pictures": row["pictures"],
            "reserved": row["credits_reserved"],
            "charged": row["credits_charged"],
            "refunded": row["credits_reserved"] - row["credits_charged"],
            "why": row["error_class"],
            "waiting_for": None,
            "completed_at": row["completed_at"],
        }
    if (job := live.get(job_id)) is None:
        return _LOST | {"job": job_id}
    begun = job["attempt"] > 0
    status = _WORDS.get(job["status"], "generating" if begun else "queued")
    partial = (job["progress"] or {}).get("partial") or {}
    money = job["credits"] or {"reserved": 0, "charged": 0, "refunded": 0}
    drawn = [one for one in partial.get("pictures", ()) if status != "failed"]
    if status == "cancelled":
        # What was paid for; the history, which is written next, says the same.
        paid = [one for one in drawn if "failed" not in one][: money["charged"] // each]
        drawn = [one for one in drawn if "failed" in one or one in paid]
    return {
        "job": job_id,
        "status": status,
        "size": money["reserved"] // each,
        "pictures": drawn,
        "reserved": money["reserved"],
        "charged": money["charged"] or 0,
        "refunded": money["refunded"] or 0,
        "why": (job["error"] or {}).get("class"),
        "waiting_for": job["waiting_for"],
        "completed_at": job["finished_at"],
    }


def _places(part: Row, each: int, before: int) -> list[Row]:
    """A place for each picture of a job: there, refunded, being drawn, or yet to come."""
    drawn = {one["number"]: one for one in part["pictures"]}
    places: list[Row] = []
    for number in range(1, part["size"] + 1):
        place: Row = {"number": before + number}
        one = drawn.get(number)
        if one is not None and "failed" not in one:
            place |= {"state": "ready", "url": f"/api/images/{part['job']}/{number}.png"}
        elif one is not None or part["status"] in ENDED:
            why = one["failed"] if one else part["status"]
            # While the job runs, its credits are reserved still: they come back at its end.
            back = "refunded" if part["status"] in ENDED else "failed"
            place |= {"state": back, "why": why, "credits": each}
        elif part["status"] == "generating" and number == len(drawn) + 1:
            place["state"] = "drawing"
        else:
            place["state"] = "waiting"
        places.append(place)
    return places


def _status(parts: list[str]) -> str:
    if set(parts) == {"queued"}:
        return "queued"
    if not set(parts) <= set(ENDED):
        return "generating"
    if "completed" in parts:
        return "completed"
    return "cancelled" if "cancelled" in parts else "failed"


def _sentence(
    status: str, images: tuple[int, int], refunded: int, first: Row | None, parts: list[Row]
) -> str:
    ready, wanted = images
    back = _refunded(refunded)
    match status:
        case "queued":
            place = f"#{first['position']} in" if first else "in"
            return " ".join(filter(None, [f"You are {place} the queue.", _held_up(parts)]))
        case "generating" if (held := _held_up(parts)) is not None:
            return held
        case "generating" if ready:
            return f"Generating your images… {ready} of {wanted} so far."
        case "generating":
            return "Generating your images…"
        case "completed" if ready == wanted:
            return "Your image is ready." if wanted == 1 else f"Your {wanted} images are ready."
        case "completed":
            return f"{ready} of {wanted} images {'is' if ready == 1 else 'are'} ready. {back}"
        case "cancelled" if ready:
            return f"Cancelled. {ready} of {wanted} images had come and stay yours. {back}"
        case "cancelled":
            return f"Cancelled. {back}"
        case _:
            why = next((WHY_NOT[one["why"]] for one in parts if one["why"] in WHY_NOT), NONE_CAME)
            return f"{why} {back}"


def _refunded(number: int) -> str:
    return f"{in_credits(number)} {'was' if number == 1 else 'were'} refunded."


def _held_up(parts: list[Row]) -> str | None:
    """Why nothing goes on; None while something does, or waits for its turn only."""
    waits = {part["waiting_for"] for part in parts if part["status"] not in ENDED}
    return _HELD_UP.get(waits.pop() or "") if len(waits) == 1 else None
