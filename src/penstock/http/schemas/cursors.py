"""Cursors: where the next page of a list begins. Opaque to callers, and valid for ever."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeVar
from uuid import UUID

from pydantic import Field

from penstock.errors import Invalid
from penstock.security import signed

Limit = Annotated[int, Field(ge=1, le=1000, description="The largest number of items.")]
Cursor = Annotated[str | None, Field(description="`next_cursor` of the previous page.")]

_ID, _TEXT = b"\x01", b"\x02"
# The database's numbers have 64 bits.
_NUMBER = re.compile("[0-9]{1,18}")

Position = TypeVar("Position")


def write(after: UUID | str | None) -> str | None:
    """Make a cursor; `after`: the last row of a page: its id, a name, a number or a time."""
    if after is None:
        return None
    if isinstance(after, UUID):
        return signed.text(_ID + after.bytes)
    return signed.text(_TEXT + after.encode())


def page(
    items: Sequence[dict[str, Any]], limit: int, read_id: Callable[[Any], UUID | str] = str
) -> dict[str, Any]:
    """Return the answer of a list: a full page has a next one."""
    after = read_id(items[-1]["id"]) if len(items) == limit else None
    return {"items": items, "next_cursor": write(after)}


def read(cursor: str | None) -> UUID | None:
    return _read(cursor, _ID, lambda content: UUID(bytes=content))


def read_text(cursor: str | None) -> str | None:
    return _read(cursor, _TEXT, _text)


def read_number(cursor: str | None) -> int | None:
    return _read(cursor, _TEXT, _number)


def _read(
    cursor: str | None, sort: bytes, position: Callable[[bytes], Position]
) -> Position | None:
    if cursor is None:
        return None
    with suppress(ValueError):
        content = signed.content(cursor)
        if content.startswith(sort):
            return position(content[1:])
    raise Invalid(
        "cursor is not of this list: pass next_cursor of the previous page, or leave it out",
        code="invalid_cursor",
        field="cursor",
    )


def _text(content: bytes) -> str:
    if b"\0" in content:
        raise ValueError
    return content.decode()


def _number(content: bytes) -> int:
    if not _NUMBER.fullmatch(content.decode()):
        raise ValueError
    return int(content)
