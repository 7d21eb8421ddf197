"""Files over HTTP: taken as they come, told by their content, and given to their owner only."""

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.engine.uploads import Upload
from penstock.errors import Invalid, NotAllowed
from penstock.http.auth.caller import Principal, Reader, Submitter
from penstock.http.backend import Backend
from penstock.http.middleware.limits import limits
from penstock.http.middleware.security_headers import NOTHING_RUNS
from penstock.http.routing import Routes
from penstock.http.schemas.body import Strict
from penstock.http.schemas.content_type import SAMPLE_BYTES, served, sniff
from penstock.http.schemas.multipart import read_form

routes = Routes("uploads")

_ACCOUNT = "whose it shall be; with a key of kind app or admin"

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
    206: {"description": "The part that `Range` asked for"},
    304: {"description": "As `If-None-Match` has it"},
    416: {"description": "`Range` begins behind the end"},
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
    form = await read_form(request, room, held, texts=("account",))
    assert form.file is not None  # noqa: S101  # or it was refused
    with form.file as file:
        owner = _owner(principal, form.texts.get("account") or account)
        if form.size == 0:
            raise Invalid("file: it is empty", code="empty_upload", field="file")
        file.seek(0)
        content_type = sniff(file.read(SAMPLE_BYTES))
        kept = await backend.engine.uploads.create(file, content_type, account=owner)
    return {"id": str(kept.id), "content_type": kept.content_type, "size": kept.size}


@routes.add("GET", "/v1/uploads/{upload_id}", summary="Download a file", responses=_FILE)
async def download(
    upload_id: UUID, request: Request, principal: Reader, backend: Backend
) -> Response:
    found = await backend.engine.uploads.find(upload_id, account=_whose(principal))
    return sent(request, backend, found)


@routes.add("DELETE", "/v1/uploads/{upload_id}", status=204, summary="Delete a file")
async def delete(upload_id: UUID, principal: Submitter, backend: Backend) -> None:
    await backend.engine.uploads.delete(upload_id, account=_whose(principal))


def sent(request: Request, backend: Backend, found: Upload) -> Response:
    """The file, or the part of it that is asked for."""
    headers = _headers(found)
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    start, end = 0, found.size
    asked = _RANGE.fullmatch(request.headers.get("range", ""))
    if asked:
        start, end = int(asked[1]), min(found.size, int(asked[2] or found.size) + 1)
        if start >= found.size or end <= start:
            return Response(
                status_code=416, headers={**headers, "Content-Range": f"bytes */{found.size}"}
            )
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{found.size}"
    headers["Content-Length"] = str(end - start)
    return StreamingResponse(
        _content(backend, found, start, end),
        status_code=206 if asked else 200,
        media_type=served(found.content_type)[0],
        headers=headers,
    )


async def _content(backend: Backend, found: Upload, start: int, end: int) -> AsyncIterator[bytes]:
    left = end - start
    async for piece in backend.engine.uploads.pieces(found, start):
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return


def _owner(principal: Principal, account: str | None) -> str | None:
    """Whose an upload will be."""
    if principal.account is not None and account is not None:
        raise NotAllowed(
            "account: an account's key uploads for its own account; leave it out",
            code="not_allowed",
            field="account",
        )
    return principal.account or account


def _whose(principal: Principal) -> str | None:
    """Whose uploads a caller may see; None: everyone's."""
    if principal.sees_all:
        return None
    if principal.account is None or principal.job or principal.topic:
        raise NotAllowed(
            "this token is for a job or a topic, and opens no files",
            code="not_allowed",
            hint="Ask for a token of the account.",
        )
    return principal.account


def _headers(found: Upload) -> dict[str, str]:
    """Nothing of it runs in a browser, whatever it holds: a file that is two things stays data."""
    _, extension = served(found.content_type)
    return {
        "Content-Disposition": f'attachment; filename="{found.id}.{extension}"',
        "Content-Security-Policy": f"{NOTHING_RUNS}; sandbox",
        "Cache-Control": "private, no-cache",
        "Accept-Ranges": "bytes",
        "ETag": f'"{found.sha256.hex()}"',
    }
