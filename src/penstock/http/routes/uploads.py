"""Uploads over HTTP: the type comes from the content, and only the owner may download a file."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import IO, Annotated, Any
from uuid import UUID

from pydantic import Field
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from penstock.engine.uploads import Room, Upload
from penstock.errors import Invalid, NotAllowed
from penstock.http.auth.caller import Principal, Reader, Submitter
from penstock.http.backend import Backend
from penstock.http.middleware.limits import Holding, limits
from penstock.http.middleware.problems import NOTHING_RUNS
from penstock.http.routing import Routes, Strict, receive
from penstock.http.schemas.content_type import SAMPLE_BYTES, served, sniff

routes = Routes("uploads")

_ACCOUNT = "the owner, if the key is of kind app or admin"

# How much of a file is kept in memory; the rest goes to a temporary file.
MEMORY_BYTES = 64 * 1024
TEXT_BYTES = 1_024
MOST_PARTS = 8
# Boundaries and headers around the parts.
ENVELOPE_BYTES = 64 * 1024
_FIELDS = ("file", "account")

_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})?", re.ASCII)
_FORM: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "account": {"type": "string", "description": _ACCOUNT},
                },
            }
        }
    },
}
_FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file, as a download",
        "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
    },
    206: {"description": "The part that `Range` requests"},
    304: {"description": "Not changed since the `ETag` in `If-None-Match`"},
    416: {"description": "`Range` begins after the end of the file"},
}


class Uploaded(Strict):
    """An upload; payloads and results refer to it as `{"upload": id}`."""

    id: UUID
    content_type: str
    size: int


@routes.add(
    "POST",
    "/v1/uploads",
    status=201,
    summary="Upload a file",
    answer=Uploaded,
    request_body=_FORM,
    refuses=(400, 404, 408, 415),
)
async def upload(
    request: Request,
    principal: Submitter,
    backend: Backend,
    account: Annotated[str | None, Field(max_length=200, description=_ACCOUNT)] = None,
) -> dict[str, Any]:
    room = await backend.engine.uploads.room(_owner(principal, account))
    held = limits(request).hold_upload(request, principal, room)
    file, size, named = await _read_form(request, room, held)
    with file:
        owner = _owner(principal, named or account)
        if size == 0:
            raise Invalid("file: the file is empty", code="empty_upload", field="file")
        content_type = sniff(file.read(SAMPLE_BYTES))
        stored = await backend.engine.uploads.create(file, content_type, account=owner)
    return {"id": str(stored.id), "content_type": stored.content_type, "size": stored.size}


@routes.add("GET", "/v1/uploads/{upload_id}", summary="Download a file", responses=_FILE)
async def download(
    upload_id: UUID, request: Request, principal: Reader, backend: Backend
) -> Response:
    file = await backend.engine.uploads.find(upload_id, account=_whose(principal))
    return sent(request, backend, file)


@routes.add("DELETE", "/v1/uploads/{upload_id}", status=204, summary="Delete a file")
async def delete(upload_id: UUID, principal: Submitter, backend: Backend) -> None:
    await backend.engine.uploads.delete(upload_id, account=_whose(principal))


def sent(request: Request, backend: Backend, file: Upload) -> Response:
    """Return an answer with the file, or with the requested part of it."""
    headers = _headers(file)
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    start, end = 0, file.size
    span = _RANGE.fullmatch(request.headers.get("range", ""))
    if span:
        start, end = int(span[1]), min(file.size, int(span[2] or file.size) + 1)
        if start >= file.size or end <= start:
            return Response(
                status_code=416, headers={**headers, "Content-Range": f"bytes */{file.size}"}
            )
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
    headers["Content-Length"] = str(end - start)
    return StreamingResponse(
        _content(backend, file, start, end),
        status_code=206 if span else 200,
        media_type=served(file.content_type)[0],
        headers=headers,
    )


async def _content(backend: Backend, file: Upload, start: int, end: int) -> AsyncIterator[bytes]:
    left = end - start
    async for piece in backend.engine.uploads.pieces(file, start):
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return


def _owner(principal: Principal, account: str | None) -> str | None:
    """Return the owner of a new upload."""
    if principal.account is not None and account is not None:
        raise NotAllowed(
            "account: an account's key uploads for its own account; leave this field out",
            code="not_allowed",
            field="account",
        )
    return principal.account or account


def _whose(principal: Principal) -> str | None:
    """Return the account whose uploads a caller may see; None: all accounts."""
    if principal.sees_all:
        return None
    if principal.account is None or principal.job or principal.topic:
        raise NotAllowed(
            "a token for a job or a topic gives no access to files",
            code="not_allowed",
            hint="Ask for a token for the account.",
        )
    return principal.account


def _headers(file: Upload) -> dict[str, str]:
    """Headers that keep a browser from running the file, even if it is valid as two types."""
    _, extension = served(file.content_type)
    return {
        "Content-Disposition": f'attachment; filename="{file.id}.{extension}"',
        "Content-Security-Policy": f"{NOTHING_RUNS}; sandbox",
        "Cache-Control": "private, no-cache",
        "Accept-Ranges": "bytes",
        "ETag": f'"{file.sha256.hex()}"',
    }


class _Parser(MultiPartParser):
    """Parses a form with one file and known fields; the bytes it keeps are limited and counted."""

    spool_max_size = MEMORY_BYTES

    def __init__(self, request: Request, room: Room, held: Holding) -> None:
        super().__init__(
            request.headers,
            self._received(request),
            max_files=1,
            max_fields=MOST_PARTS,
            max_part_size=TEXT_BYTES,
        )
        self._room = room
        self._held = held
        self.size = 0
        """The bytes of the file so far."""
        self._complete = False

    async def _received(self, request: Request) -> AsyncGenerator[bytes, None]:
        received = 0
        async for chunk in receive(request):
            received += len(chunk)
            self._room.refuse_larger(received - ENVELOPE_BYTES)
            yield chunk
        # Raised here and not after `parse`: `parse` then closes its files.
        if not self._complete:
            raise _wrong("the form ends before its last boundary", None)

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        name = self._current_part.field_name
        if name not in _FIELDS:
            raise _wrong(f"{name[:100]}: not a known field; known are {', '.join(_FIELDS)}", name)

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._current_part.file is not None:
            self.size += end - start
            self._room.refuse_larger(self.size)
            self._held.add(end - start)
        super().on_part_data(data, start, end)

    def on_part_end(self) -> None:
        # Starlette would read other bytes as Latin-1: another account's name.
        if self._current_part.file is None:
            name = self._current_part.field_name
            try:
                self._current_part.data.decode()
            except UnicodeDecodeError:
                raise _wrong(f"{name}: not UTF-8", name) from None
        super().on_part_end()

    def on_end(self) -> None:
        self._complete = True


async def _read_form(
    request: Request, room: Room, held: Holding
) -> tuple[IO[bytes], int, str | None]:
    """Return the file of a form, its size, and the account that the form names.

    `held` counts the bytes of the file as they arrive.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise HTTPException(415, "send a form: multipart/form-data with a part named file")
    declared = request.headers.get("content-length", "")
    if declared.isdigit():
        room.refuse_larger(int(declared) - ENVELOPE_BYTES)
    parser = _Parser(request, room, held)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise _wrong(f"the form cannot be read: {error.message}", "file") from None
    except ClientDisconnect:
        raise HTTPException(400, "the client disconnected") from None
    file, account = (form.get(name) for name in _FIELDS)
    if not isinstance(file, UploadFile):
        raise _wrong("file: the form has no file; its part needs a filename", "file")
    return file.file, parser.size, account if isinstance(account, str) else None


def _wrong(message: str, field: str | None) -> Invalid:
    return Invalid(message, code="invalid_request", field=field)
