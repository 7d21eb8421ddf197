"""An order as its customer sees it: one status, a sentence, a place for each picture, and credits.

| jobs of the order                           | status     |
|---------------------------------------------|------------|
| none has begun                              | queued     |
| one has begun, and not all have ended       | generating |
| all have ended, one of them by a cancel     | cancelled  |
| all have ended by themselves, with pictures | completed  |
| all have ended by themselves, without       | failed     |

While no job runs there are a position and an `eta_seconds`, also where some have begun; after a
cancel and before the end `stopping` is true.
"""

from datetime import UTC, datetime
from typing import Any

from protect import PENSTOCK
from studio.errors import in_credits
from studio.kinds import SOLD
from studio.store import Row

ENDED = ("completed", "failed", "cancelled")
AWAY = "The image model does not answer at the moment; it goes on by itself."
PAUSED = "The studio has a break."
NO_WORKER = "Nobody is at work yet."
OWN_LIMIT = "It starts when another of your jobs ends."
OTHERS = "Others are being drawn; it starts after them."
STOPPING = "Stopping; what has come stays yours."
STAYS = "What has come stays yours."
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
    "runs": False,
    "stopping": False,
    "waiting_for": None,
    "completed_at": None,
}
_HELD_UP = {
    "circuit_open": AWAY,
    "rate_limit": AWAY,
    "paused": PAUSED,
    "no_worker": NO_WORKER,
    "no_handler": NO_WORKER,
    "account_limit": OWN_LIMIT,
    "queue_limit": OTHERS,
    "backoff": AGAIN,
}


def shown(row: Row) -> dict[str, Any]:
    """Return an order with its jobs as JSON for a page."""
    each = SOLD[row["job_type"]].prices[row["quality"]]
    written = {one["job_id"]: one for one in row["ended"]}
    live = {one["id"]: one for one in row["live"]}
    kept = {job: [number for of, number in row["kept"] if of == job] for job in live}
    parts = [_part(str(job), written, live, kept, each) for job in row["job_ids"]]
    pictures: list[Row] = []
    for part in parts:
        pictures += _places(part, each, len(pictures))
    status = _status([part["status"] for part in parts])
    stopping = any(part["stopping"] for part in parts)
    runs = stopping or any(part["runs"] for part in parts)
    # As one: it goes on when the first of its jobs does.
    waits = [job for job in live.values() if job["position"] is not None and not runs]
    first = min(waits, key=lambda job: job["position"], default=None)
    money = {
        name: sum(part[name] for part in parts) for name in ("reserved", "charged", "refunded")
    }
    ready = sum("url" in one for one in pictures)
    note = STAYS if stopping else "" if runs else _held_up(first, parts)
    return {
        "job_id": str(row["id"]),
        "job": None if status in ENDED else {"src": watched(row["batch"])},
        "job_type": row["job_type"],
        "prompt": row["prompt"],
        "images": row["images"],
        "quality": row["quality"],
        "jobs": len(parts),
        "status": status,
        "stopping": stopping,
        "message": _sentence(status, (ready, row["images"]), money["refunded"], first, parts),
        "note": "" if status in ENDED else note,
        "position": first and first["position"],
        "eta_seconds": first and first["eta_seconds"],
        "ready": ready,
        "pictures": pictures,
        "credits": money,
        "created_at": row["created_at"].isoformat(),
        "completed_at": _last_moment(parts) if status in ENDED else None,
    }


def watched(batch: Any) -> str:
    """Return the order for <penstock-job>, which shows its jobs as one."""
    return f"{PENSTOCK}/v1/batches/{batch}"


def _part(
    job_id: str,
    written: dict[str, Row],
    live: dict[str, Row],
    kept: dict[str, list[int]],
    each: int,
) -> Row:
    """Return one job of the order, from the history or from Penstock."""
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
            "runs": False,
            "stopping": False,
            "waiting_for": None,
            "completed_at": row["completed_at"],
        }
    if (job := live.get(job_id)) is None:
        return _LOST | {"job": job_id}
    begun = job["attempt"] > 0
    status = _WORDS.get(job["status"], "generating" if begun else "queued")
    runs = status == "generating" and job["status"] in _WORDS
    partial = (job["progress"] or {}).get("partial") or {}
    money = job["credits"] or {"reserved": 0, "charged": 0, "refunded": 0}
    # A new start begins without progress; what an earlier one has drawn is there all the same.
    found = {number: {"number": number} for number in kept[job_id]}
    found |= {one["number"]: one for one in partial.get("pictures", ())}
    drawn = [one for _, one in sorted(found.items()) if status != "failed" or "failed" in one]
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
        "runs": runs,
        "stopping": job["cancel_requested"],
        "waiting_for": job["waiting_for"],
        "completed_at": job["finished_at"],
    }


def _places(part: Row, each: int, before: int) -> list[Row]:
    """Return a slot for each picture of a job: ready, refunded, being drawn, or waiting."""
    drawn = {one["number"]: one for one in part["pictures"]}
    places: list[Row] = []
    next_one = min(set(range(1, part["size"] + 1)) - set(drawn), default=None)
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
        elif part["runs"] and number == next_one:
            place["state"] = "drawing"
        else:
            place["state"] = "waiting"
        places.append(place)
    return places


def _last_moment(parts: list[Row]) -> str | None:
    """In one form: the history and Penstock write moments differently."""
    moments = [
        datetime.fromisoformat(part["completed_at"]) for part in parts if part["completed_at"]
    ]
    return max(moments).astimezone(UTC).isoformat() if moments else None


def _status(parts: list[str]) -> str:
    if set(parts) == {"queued"}:
        return "queued"
    if not set(parts) <= set(ENDED):
        return "generating"
    return next(one for one in ("cancelled", "completed", "failed") if one in parts)


def _sentence(
    status: str, images: tuple[int, int], refunded: int, first: Row | None, parts: list[Row]
) -> str:
    ready, wanted = images
    if status in ENDED:
        return _end_sentence(status, images, refunded, parts)
    if any(part["stopping"] for part in parts):
        return STOPPING
    if any(part["runs"] for part in parts):
        so_far = f" {ready} of {wanted} so far." if ready else ""
        return f"Generating your images…{so_far}"
    return _waiting_sentence(images, first, parts)


def _waiting_sentence(images: tuple[int, int], first: Row | None, parts: list[Row]) -> str:
    """Return its position, and why it waits."""
    ready, wanted = images
    place = f"#{first['position']} in" if first else "in"
    said = f"You are {place} the queue."
    if ready:
        said = f"{ready} of {wanted} {_are(ready)} ready; the rest is {place} the queue."
    return f"{said} {_held_up(first, parts)}".strip()


def _held_up(first: Row | None, parts: list[Row]) -> str:
    reasons = [first["waiting_for"]] if first else [part["waiting_for"] for part in parts]
    return next((_HELD_UP[reason] for reason in reasons if reason in _HELD_UP), "")


def _end_sentence(status: str, images: tuple[int, int], refunded: int, parts: list[Row]) -> str:
    ready, wanted = images
    match status:
        case "completed" if ready == wanted:
            said = "Your image is ready." if wanted == 1 else f"Your {wanted} images are ready."
        case "completed":
            said = f"{ready} of {wanted} images {_are(ready)} ready."
        case "cancelled" if ready:
            said = f"Cancelled. {ready} of {wanted} images had come and stay yours."
        case "cancelled":
            said = "Cancelled."
        case _:
            said = next((WHY_NOT[one["why"]] for one in parts if one["why"] in WHY_NOT), NONE_CAME)
    return f"{said} {_refunded(refunded)}".strip()


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _refunded(number: int) -> str:
    """Of what was never reserved, as of a job that was taken out by hand, nothing is said."""
    return f"{in_credits(number)} {'was' if number == 1 else 'were'} refunded." if number else ""
