"""Files over HTTP: taken as they come, told by their content, and given to their owner only."""

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import StreamingResponse

from penstock.api import problems
from penstock.api.access import refuse_unless_allowed
from penstock.api.auth import Principal, allowed
from penstock.api.backend import Backend, backend
from penstock.api.body import Strict
from penstock.api.limits import limits
from penstock.api.multipart import read_form
from penstock.api.safety import NOTHING_RUNS
from penstock.api.sniff import SAMPLE_BYTES, served, sniff
from penstock.engine.uploads import Upload
from penstock.errors import Invalid, NotAllowed

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])

Writer = Annotated[Principal, Depends(allowed("admin", "app", "account"))]
Reader = Annotated[Principal, Depends(allowed("admin", "app", "account", "token"))]
Behind = Annotated[Backend, Depends(backend)]
_ACCOUNT = "whose it shall be; with a key of kind app or admin"

_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})?", re.ASCII)
_FORM: dict[str, Any] = {
    "requestBody": {
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


@router.post(
    "",
    status_code=201,
    summary="Upload a file",
    openapi_extra=_FORM,
    responses=problems.documented(400, 401, 403, 404, 408, 413, 415, 422, 429, 503),
)
async def upload(
    request: Request,
    principal: Writer,
    behind: Behind,
    account: Annotated[str | None, Query(max_length=200, description=_ACCOUNT)] = None,
) -> Uploaded:
    room = await behind.engine.uploads.room(_owner(principal, account))
    held = limits(request).hold_upload(request, principal, room)
    form = await read_form(request, room, held, texts=("account",))
    assert form.file is not None  # noqa: S101  # or it was refused
    with form.file as file:
        owner = _owner(principal, form.texts.get("account") or account)
        if form.size == 0:
            raise Invalid("file: it is empty", code="empty_upload", field="file")
        file.seek(0)
        content_type = sniff(file.read(SAMPLE_BYTES))
        kept = await behind.engine.uploads.create(file, content_type, account=owner)
    return Uploaded(id=kept.id, content_type=kept.content_type, size=kept.size)


@router.get(
    "/{upload_id}",
    summary="Download a file",
    response_class=Response,
    responses={**_FILE, **problems.documented(401, 403, 404, 422, 429, 503)},
)
async def download(
    upload_id: UUID, request: Request, principal: Reader, behind: Behind
) -> Response:
    refuse_unless_allowed(principal, "read")
    found = await behind.engine.uploads.find(upload_id, account=_whose(principal))
    return sent(request, behind, found)


@router.delete(
    "/{upload_id}",
    status_code=204,
    summary="Delete a file",
    responses=problems.documented(401, 403, 404, 422, 429, 503),
)
async def delete(upload_id: UUID, principal: Writer, behind: Behind) -> None:
    await behind.engine.uploads.delete(upload_id, account=_whose(principal))


def sent(request: Request, behind: Backend, found: Upload) -> Response:
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
        _content(behind, found, start, end),
        status_code=206 if asked else 200,
        media_type=served(found.content_type)[0],
        headers=headers,
    )


async def _content(behind: Backend, found: Upload, start: int, end: int) -> AsyncIterator[bytes]:
    left = end - start
    async for piece in behind.engine.uploads.pieces(found, start):
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
