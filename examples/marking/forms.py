"""Input of the pages, read within a size limit."""

import json
from typing import Any
from uuid import UUID

from fastapi import Request

from marking.errors import Wrong
from marking.marks import LONGEST_FEEDBACK, Correction

BODY_BYTES = 4 * 1024
# With a feedback of the teacher in it.
CORRECTION_BYTES = 16 * 1024


async def read_submission(request: Request) -> UUID | None:
    """Read the id of the answer to mark; None for all answers."""
    said = (await _read_fields(request, ("submission_id",))).get("submission_id")
    return None if said is None else _id(said)


async def read_correction(request: Request) -> Correction:
    """Read a mark by hand: the answer, the points and the feedback."""
    fields = await _read_fields(request, ("submission_id", "score", "feedback"), CORRECTION_BYTES)
    score, feedback = fields.get("score"), fields.get("feedback", "")
    if type(score) is not int or score < 0:
        raise Wrong("score", "The points must be a whole number, 0 or more.")
    if not isinstance(feedback, str) or "\0" in feedback or len(feedback) > LONGEST_FEEDBACK:
        longest = f"{LONGEST_FEEDBACK:,}"
        raise Wrong("feedback", f"The feedback may be a text of up to {longest} characters.")
    return Correction(_id(fields.get("submission_id")), score, feedback.strip())


def _id(said: Any) -> UUID:
    try:
        return UUID(said)
    except (ValueError, TypeError, AttributeError):
        raise Wrong("submission_id", "submission_id may be the id of an answer.") from None


async def _read_fields(
    request: Request, known: tuple[str, ...], most: int = BODY_BYTES
) -> dict[str, Any]:
    """Read the JSON object of a request; refuse unknown fields."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise Wrong(None, "This is more than a request may be long.", status=413)
    try:
        fields = json.loads(bytes(body) or b"{}")
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not set(fields) <= set(known):
        raise Wrong(None, f"The body must be a JSON object with {', '.join(known)}.")
    return fields
