"""What the pages send, read within a limit."""

import json
from typing import Any
from uuid import UUID

from fastapi import Request

from marking.errors import Wrong

BODY_BYTES = 4 * 1024


async def read_submission(request: Request) -> UUID | None:
    """The answer that shall be marked; without one, all of them."""
    said = (await _read_fields(request, ("submission_id",))).get("submission_id")
    if said is None:
        return None
    try:
        return UUID(said)
    except (ValueError, TypeError, AttributeError):
        raise Wrong("submission_id", "submission_id may be the id of an answer.") from None


async def _read_fields(request: Request, known: tuple[str, ...]) -> dict[str, Any]:
    """The JSON object of a request that has no other fields than these."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES:
            raise Wrong(None, "This is more than a request may be long.", status=413)
    try:
        fields = json.loads(bytes(body) or b"{}")
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not set(fields) <= set(known):
        raise Wrong(None, f"The body must be a JSON object with {', '.join(known)}.")
    return fields
