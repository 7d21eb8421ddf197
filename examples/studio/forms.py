"""What a customer orders: read within a limit, and checked field by field.

Account, plan, priority and price are nobody's to send: what is not known here is refused by name.
"""

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from fastapi import Request

from studio.errors import Wrong
from studio.kinds import LONGEST_PROMPT, MOST_IMAGES, SOLD, Quality

BODY_BYTES = 16 * 1024
FIELDS = ("job_type", "prompt", "images", "quality")
KEY_HEADER = "Idempotency-Key"

_KEY = re.compile(r"[A-Za-z0-9_-]{8,64}")
_SHOWN_NAME = 40


@dataclass(frozen=True, slots=True)
class Order:
    job_type: str
    prompt: str
    images: int
    quality: Quality


async def read_order(request: Request) -> Order:
    """Read the order of a request; raise Wrong for the first problem."""
    fields = await read_fields(request, FIELDS)
    job_type, prompt = fields.get("job_type"), fields.get("prompt")
    images, quality = fields.get("images"), fields.get("quality")
    if not isinstance(job_type, str) or job_type not in SOLD:
        raise Wrong("job_type", f"job_type may be {', '.join(SOLD)}.")
    if not isinstance(prompt, str) or not _is_seen(prompt):
        raise Wrong("prompt", "Say what you would like to see: the prompt is empty.")
    prompt = prompt.replace("\r\n", "\n").strip()
    if len(prompt) > LONGEST_PROMPT:
        raise Wrong("prompt", f"The prompt may have {LONGEST_PROMPT} characters at most.")
    if "\0" in prompt or prompt != _as_text(prompt):
        raise Wrong("prompt", "The prompt has a character in it that is no text.")
    if type(images) is not int or not 1 <= images <= MOST_IMAGES:
        raise Wrong("images", f"images may be a whole number from 1 to {MOST_IMAGES}.")
    if quality != "standard" and quality != "high":  # noqa: PLR1714  # mypy follows this
        raise Wrong("quality", "quality may be standard or high.")
    return Order(job_type, prompt, images, quality)


def read_key(request: Request) -> str | None:
    """Read the idempotency key; a second click sends the same one."""
    key = request.headers.get(KEY_HEADER)
    if key is not None and not _KEY.fullmatch(key):
        raise Wrong(KEY_HEADER, f"{KEY_HEADER} may be 8 to 64 letters, digits, - or _.")
    return key


async def read_reference(request: Request) -> str:
    """Read the reference of a purchase."""
    reference = (await read_fields(request, ("reference",))).get("reference")
    if not isinstance(reference, str) or not _KEY.fullmatch(reference):
        raise Wrong("reference", "reference may be 8 to 64 letters, digits, - or _, new for each.")
    return reference


def read_before(request: Request) -> UUID | None:
    """After which order the next page of the history begins; without one, at the newest."""
    said = request.query_params.get("before") or None
    try:
        return said and UUID(said)
    except ValueError:
        raise Wrong("before", "before may be the job_id of an order.") from None


async def read_fields(request: Request, known: tuple[str, ...]) -> dict[str, Any]:
    """Read the JSON object of a request; refuse unknown fields."""
    body = await _body(request)
    try:
        fields = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise Wrong(None, f"The body must be a JSON object with {', '.join(known)}.")
    for name in fields:
        if name not in known:
            shown = _as_text(name if len(name) <= _SHOWN_NAME else name[:_SHOWN_NAME] + "…")
            raise Wrong(shown, f"{shown} is not for you to say: there are {', '.join(known)}.")
    return fields


async def read_customer(request: Request) -> str:
    """Read the customer that was chosen on the sign-in page."""
    chosen = parse_qs((await _body(request)).decode(errors="replace")).get("customer", [""])
    return chosen[0]


async def _body(request: Request) -> bytes:
    """Read the body within a limit, because the framework has none."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES:
            raise Wrong(None, "This is more than a request may be long.", status=413)
    return bytes(body)


def _is_seen(text: str) -> bool:
    """Spaces and what has no width (the categories Z and C) are nothing to draw."""
    return any(unicodedata.category(one)[0] not in "ZC" for one in text)


def _as_text(text: str) -> str:
    """Half of a surrogate pair can be written in JSON, and neither kept nor sent: ? instead."""
    return text.encode(errors="replace").decode()
