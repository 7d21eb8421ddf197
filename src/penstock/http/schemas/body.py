"""Request bodies: bounded before they are read, parsed safely, and refused by field.

How much may be read depends on who sends it, and is counted while the request lasts (limits.py).
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from penstock.errors import Invalid, TooLarge
from penstock.http.middleware.limits import FUNCTIONS, STRANGER_BYTES, Sender, limits

# A job's payload may have a megabyte (setting.payload_max_bytes), a batch many of them.
LARGEST_BYTES = 64 * 1024 * 1024
USUAL_BYTES = 4 * 1024 * 1024
# So much has to come in each such time, or the end of the body: 8 KB a second. A client that sends
# less has gone, or holds on purpose what others need.
PROGRESS_SECONDS = 30.0
PROGRESS_BYTES = 240 * 1024
# Commas, colons and brackets outside of texts: a value takes two bytes there, and eighty of memory.
MOST_MARKS = 1_000_000
_MARKS = (b",", b":", b"[", b"{")
# A text, or several in a row; possessive, and its end may be missing: one pass, whatever comes.
_TEXTS = re.compile(rb'(?:"(?:[^"\\]++|\\.)*+"?)++', re.DOTALL)

JSON = "application/json"

Content = bytes | bytearray
Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """A body of ours: no field that is not known, no number that is a text."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


async def read_body(request: Request, most: int = USUAL_BYTES) -> bytes:
    """All of it, unless it is larger; then not a byte more than that is held."""
    return bytes(await _read(request, most, limits(request).sender(request)))


async def read_callback(
    request: Request, most: int, *, known: bool, proves: Callable[[bytes], bool]
) -> bytes:
    """The body of a function's callback.

    Unless the headers have proved whose it is (`known`), a large one is read on only when its
    beginning `proves` it.
    """
    sender = FUNCTIONS if known else limits(request).sender(request)
    return bytes(await _read(request, most, sender, None if known else proves))


async def _read(
    request: Request,
    most: int,
    sender: Sender,
    proves: Callable[[bytes], bool] | None = None,
) -> bytearray:
    declared = request.headers.get("content-length", "")
    length = int(declared) if declared.isdigit() else 0
    bound = min(most, sender.most)
    allowed = most if proves else bound
    if length > allowed:
        raise _too_large(allowed)
    holding = limits(request).hold_body(request, sender)
    sending = limits(request).hold_sending(request, sender)
    content = bytearray()
    async for chunk in receive(request):
        content += chunk
        if len(content) > bound and proves is not None:
            if not proves(bytes(content[:STRANGER_BYTES])):
                raise _unproved()
            bound, proves = most, None
            holding.move(FUNCTIONS.shares)
            sending.move(FUNCTIONS.shares)
        if len(content) > bound:
            raise _too_large(bound)
        holding.add(len(chunk))
    sending.release()
    return content


async def receive(request: Request) -> AsyncIterator[bytes]:
    """A body as it comes, for as long as enough of it does."""
    loop = asyncio.get_running_loop()
    deadline, received = loop.time() + PROGRESS_SECONDS, 0
    more = True
    while more:
        # Not by request.stream(), which needs three turns for a body that received at once.
        try:
            async with asyncio.timeout_at(deadline):
                message = await request.receive()
        except TimeoutError:
            raise _too_slow() from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)
        if body := message.get("body"):
            received += len(body)
            if received >= PROGRESS_BYTES:
                deadline, received = loop.time() + PROGRESS_SECONDS, 0
            yield body


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """`form: Annotated[NewKey, Body()]`: the request's body as such a model."""

    most: int = USUAL_BYTES
    empty: bool = False
    """No body is an empty object."""
    code: str = "invalid_request"
    """What a wrong one is called."""
    shown: type[BaseModel] | None = None
    """Its form in the document, where that is another one."""

    async def read(self, model: type[Model], request: Request) -> Model:
        # Not copied: a batch may have much of it.
        content = await _read(request, self.most, limits(request).sender(request))
        if not content and self.empty:
            content += b"{}"
        return parse(model, content, code=self.code)


def parse(model: type[Model], content: Content, *, code: str = "invalid_request") -> Model:
    if not content:
        raise Invalid("the body is empty: send a JSON object", code="invalid_json")
    refuse_crowded(content)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise refused(error, model, code) from None


def refuse_crowded(content: Content) -> None:
    """A body of nothing but brackets would take twenty times its size once it is read."""
    if len(content) <= MOST_MARKS or _marks(content, 0, len(content)) <= MOST_MARKS:
        return
    count = end = 0
    for text in _TEXTS.finditer(content):
        # One at least, as between any two texts of JSON: so many rounds at most, whatever it is.
        count += 1 if text.start() <= end + 2 else _marks(content, end, text.start()) or 1
        end = text.end()
        if count > MOST_MARKS:
            break
    if count + _marks(content, end, len(content)) > MOST_MARKS:
        raise TooLarge(
            f"the body holds more than {MOST_MARKS} commas, colons and brackets",
            code="payload_too_large",
            max_marks=MOST_MARKS,
            hint="Send it in parts, or as an upload.",
        )


def _marks(content: Content, start: int, end: int) -> int:
    return sum(content.count(mark, start, end) for mark in _MARKS)


def refused(error: ValidationError, model: type[BaseModel], code: str) -> Invalid:
    """The first error, by its path in the body; never the value that was given."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    if first["type"] == "json_invalid":
        return Invalid(
            f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}",
            code="invalid_json",
        )
    where = ".".join(str(part) for part in first["loc"])
    if "payload" in (str(part) for part in first["loc"]):
        code = "invalid_payload"
    members: dict[str, Any] = {}
    if len(errors) > 1:
        members["more"] = len(errors) - 1
    if len(first["loc"]) > 1 and isinstance(first["loc"][1], int):
        members["index"] = first["loc"][1]
    return Invalid(
        f"{where or 'the body'} {_worded(first['type'], first['msg'], first['loc'], model)}",
        code=code,
        field=where or None,
        **members,
    )


def _worded(cause: str, message: str, path: tuple[int | str, ...], model: type[BaseModel]) -> str:
    match cause:
        case "missing":
            return "is required"
        case "extra_forbidden" if len(path) == 1:
            return f"is not a field; known are {', '.join(model.model_fields)}"
        case "extra_forbidden":
            return "is not a field"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be a JSON object"
    for theirs, ours in (
        ("Input should", "must"),
        ("List should", "must"),
        ("String should", "must"),
    ):
        if message.startswith(theirs):
            return message.replace(theirs, ours, 1).replace(" after validation", "")
    return f"is wrong: {message}"


def _too_slow() -> HTTPException:
    return HTTPException(
        408,
        f"the body came too slowly: {PROGRESS_BYTES} bytes or its end have to come"
        f" in {PROGRESS_SECONDS:g} s",
        headers={"Connection": "close"},
    )


def _unproved() -> TooLarge:
    return TooLarge(
        f"nothing in the headers or in the first {STRANGER_BYTES} bytes proves whose callback it"
        " is, so no more is read",
        code="payload_too_large",
        max_bytes=STRANGER_BYTES,
        hint="Send the token of the attempt as bearer; or put job_id and token before the result.",
    )


def _too_large(most: int) -> TooLarge:
    return TooLarge(
        f"the body is larger than {most} bytes", code="payload_too_large", max_bytes=most
    )
