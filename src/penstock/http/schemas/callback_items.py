"""What an outside function reports of a job, read with care: the text is not ours."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from penstock.engine.encoding.encode import encode
from penstock.engine.jobs.attempts import columns
from penstock.engine.jobs.callbacks import Item
from penstock.errors import Invalid
from penstock.failures.outcome import charged, clean
from penstock.http.schemas.body import refuse_crowded
from penstock.models import usage
from penstock.models.function_reply import STATUSES, Odd, read_failure, read_units

# As SQL bounds a result; deeper text would exhaust a parser before it is asked.
DEEPEST = 64
STAGE_MAX = 200
_ATTEMPT_MAX = 2**31 - 1
_PROGRESS = ("done", "total", "partial")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadItem:
    """One item of a callback, read as far as it can be before its sender is known."""

    job_id: UUID | None
    shown: str | None
    """The job as the item names it."""
    token: str | None = None
    attempt: int | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What it reports, by the names of Item."""
    odd: str | None = None
    """Why it is invalid."""

    def item(self, job_id: UUID, attempt: int, token: str) -> Item:
        return Item(job_id=job_id, attempt=attempt, token=token, **self.columns)


def parse(body: bytes) -> Any:
    """The body as JSON; ValueError where it is none, or nested too deep.

    Anybody may send one: who sends it is known by what it holds.
    """
    refuse_crowded(body)
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read(raw: Any) -> ReadItem:
    """Read one item; never raises: an invalid item has `odd`."""
    if not isinstance(raw, dict):
        return ReadItem(job_id=None, shown=None, odd="an item must be an object")
    job_id, shown = _job(raw.get("job_id"))
    token, attempt = raw.get("token"), raw.get("attempt")
    if not isinstance(token, str):
        token = None
    if type(attempt) is not int or not 1 <= attempt <= _ATTEMPT_MAX:
        attempt = None
    item = ReadItem(job_id=job_id, shown=shown, token=token, attempt=attempt)
    try:
        return replace(item, columns=_columns(raw))
    except Odd as error:
        return replace(item, odd=str(error))
    except Invalid as error:
        return replace(item, odd=error.message)


def _job(value: Any) -> tuple[UUID | None, str | None]:
    if not isinstance(value, str) or len(value) > 36:  # noqa: PLR2004  # of a UUID
        return None, None
    try:
        found = UUID(value)
    except ValueError:
        return None, value if value.isprintable() and value.isascii() else None
    return found, str(found)


def _columns(raw: dict[str, Any]) -> dict[str, Any]:
    status = raw.get("status")
    if status not in STATUSES:
        raise Odd(f"status must be one of {', '.join(STATUSES)}")
    found: dict[str, Any] = {"units": read_units(raw.get("units"))}
    match status:
        case "succeeded":
            found["outcome"] = status
            if raw.get("result") is not None:
                found["result"] = _encoded(raw["result"], "result")
        case "failed":
            found |= _failed(raw.get("error"))
        case _:
            found["outcome"] = status
            found["stage"] = _stage(raw.get("stage"))
            found["progress"] = _progress(raw.get("progress"))
            return found
    if used := usage.numbers(raw.get("usage")):
        found["usage"] = encode(used, "usage")
    return found


def _failed(error: Any) -> dict[str, Any]:
    failure = read_failure(error, lenient=True)
    message = clean(failure.message or "the function failed and gave no reason")
    row = columns(charged(failure.verdict, message, public=failure.public))
    return {
        "outcome": row.outcome,
        "error": encode(row.error, "error"),
        "delay": row.delay,
        "bearing": row.bearing,
    }


def _stage(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > STAGE_MAX:
        raise Odd(f"stage must be a text of at most {STAGE_MAX} characters")
    encode(value, "stage")
    return value


def _progress(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) - set(_PROGRESS):
        raise Odd("progress must be an object of done, total and partial")
    for name in ("done", "total"):
        number = value.get(name)
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise Odd(f"progress.{name} must be a number")
        if not math.isfinite(number):
            raise Odd(f"progress.{name} must be a number")
    return _encoded({name: value.get(name) for name in _PROGRESS}, "progress")


def _encoded(value: Any, name: str) -> str:
    if _depth(value) > DEEPEST:
        raise Odd(f"{name} is nested deeper than {DEEPEST} levels")
    return encode(value, name)


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        if depth > DEEPEST:
            break
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                inner.extend(part.values())
            elif isinstance(part, list):
                inner.extend(part)
        level = inner
    return depth


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")
