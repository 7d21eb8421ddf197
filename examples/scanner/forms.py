"""Input of authors: read within a size limit and checked field by field."""

import json
import re
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastapi import Request

from scanner.behaviours import CHOICES, Behaviour
from scanner.errors import Wrong

LONGEST_NAME = 80
LONGEST_TEXT = 50_000
# A character needs up to six bytes in JSON.
BODY_BYTES = 6 * LONGEST_TEXT + 4096
FIELDS = ("name", "text", "behaviour")
KEY_HEADER = "Idempotency-Key"
MOST_HOURS = 2160

_NAME = re.compile(r"[a-z0-9]+([._/-][a-z0-9]+)*")
_KEY = re.compile(r"[A-Za-z0-9_-]{16,64}")


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    text: str
    behaviour: Behaviour


async def read_package(request: Request) -> Package:
    """Read the package of a request; raise Wrong for the first problem."""
    fields = await _fields(request)
    name, text = fields.get("name"), fields.get("text")
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise Wrong(
            "name",
            f"The name may have up to {LONGEST_NAME} small letters and digits, with . - _ or / "
            "between them.",
        )
    if not isinstance(text, str) or not text.strip():
        raise Wrong("text", "The package is empty. Put its text there.")
    if len(text) > LONGEST_TEXT:
        raise Wrong("text", f"The text may have {LONGEST_TEXT} characters at most.")
    if "\0" in text or not _is_text(text):
        raise Wrong("text", "The text has a character in it that is no text.")
    chosen = fields.get("behaviour", "normal")
    for behaviour in CHOICES:
        if behaviour == chosen:
            return Package(name, text, behaviour)
    raise Wrong("behaviour", f"behaviour may be {', '.join(CHOICES)}.")


def read_key(request: Request) -> str:
    """Read the idempotency key; a second click sends the same key and submits nothing."""
    key = request.headers.get(KEY_HEADER, "")
    if not _KEY.fullmatch(key):
        raise Wrong(KEY_HEADER, f"Send {KEY_HEADER}: 16 to 64 letters, digits, - or _, by chance.")
    return key


def read_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise unknown() from None


def read_hours(request: Request) -> int:
    said = request.query_params.get("hours", "24")
    if not re.fullmatch(r"[0-9]{1,4}", said) or not 1 <= int(said) <= MOST_HOURS:
        raise Wrong("hours", f"hours may be a whole number from 1 to {MOST_HOURS}.")
    return int(said)


def unknown() -> Wrong:
    return Wrong("id", "There is no submission with this id.", status=404)


async def _fields(request: Request) -> dict[str, Any]:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES:
            raise Wrong("text", "This is more than a package may be long.", status=413)
    try:
        fields = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not set(fields) <= set(FIELDS):
        raise Wrong(None, f"The body must be a JSON object with {', '.join(FIELDS)} only.")
    return fields


def _is_text(text: str) -> bool:
    """Refuse half of a surrogate pair, which JSON allows but Postgres cannot store."""
    return text == text.encode(errors="replace").decode()
