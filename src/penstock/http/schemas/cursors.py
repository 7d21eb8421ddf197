"""Where the next page of a list begins: opaque to callers, and good for as long as they keep it."""

import base64
import binascii
from typing import Annotated
from uuid import UUID

from pydantic import Field

from penstock.errors import Invalid

Limit = Annotated[int, Field(ge=1, le=1000, description="How many at most.")]
Cursor = Annotated[str | None, Field(description="`next_cursor` of the page before.")]

_ID, _TEXT = b"\x01", b"\x02"
_ID_BYTES = 16
_DIGITS = 19


def write(after: UUID | None) -> str | None:
    return None if after is None else _encode(_ID + after.bytes)


def read(cursor: str | None) -> UUID | None:
    if cursor is None:
        return None
    found = _decode(cursor, _ID)
    if len(found) != _ID_BYTES:
        raise unknown()
    return UUID(bytes=found)


def write_text(after: str | None) -> str | None:
    """The same for what is not listed by an id: a name, a moment."""
    return None if after is None else _encode(_TEXT + after.encode())


def read_text(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        found = _decode(cursor, _TEXT).decode()
    except UnicodeDecodeError:
        raise unknown() from None
    if "\0" in found:
        raise unknown()
    return found


def read_number(cursor: str | None) -> int | None:
    """Of a list by numbers that the database gives: they have 64 bits."""
    text = read_text(cursor)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < _DIGITS):
        raise unknown()
    return int(text)


def _encode(found: bytes) -> str:
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode()


def _decode(cursor: str, sort: bytes) -> bytes:
    try:
        found = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise unknown() from None
    if not found.startswith(sort):
        raise unknown()
    return found[1:]


def unknown() -> Invalid:
    """What is told of one that is not of this list."""
    return Invalid(
        "cursor is none of this list: pass next_cursor of the page before, or none",
        code="invalid_cursor",
        field="cursor",
    )
