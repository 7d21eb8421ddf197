"""Error answers, ours and Starlette's, as RFC 9457 with a stable code; security headers."""

import json
import logging
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route

from penstock.errors import DiskFull, PenstockError, Refused, RolledBack, Unavailable

# Headers of every answer, unless its route sets them. With them a browser does not guess another
# content type, keep a copy on disk, run scripts in the answer, or show it in another page's frame.
NOTHING_RUNS = "default-src 'none'; frame-ancestors 'none'"
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": NOTHING_RUNS,
}


MEDIA_TYPE = "application/problem+json"
# After an outage or a delay: soon enough for people, but not a storm of requests.
RETRY_SECONDS = 1
# An operator has to free disk space, which takes longer.
FULL_SECONDS = 5

# Refusals that pass when another transaction commits.
_PASSING = (
    "idempotency_in_progress",
    "contended",
    "job_contended",
    "dedupe_contended",
    "queue_locked",
)

_log = logging.getLogger("penstock.http")

_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "payload_too_large",
    415: "unsupported_media_type",
    422: "invalid_request",
    503: "server_busy",
}

_MEANINGS = {
    401: "No key, or one that is unknown, revoked or expired",
    402: "Not enough credits: see `balance` and `required`",
    403: "This key or token may not do this",
    404: "It does not exist, or this key may not see it",
    409: "Its present state does not allow this, or another request is changing it",
    413: "Too large",
    422: "A field is wrong: see `field`",
    429: "Too many requests: see `Retry-After`",
    500: "An error in the server, which has been logged",
    503: "The database cannot be reached: see `Retry-After`",
}


def problem(  # noqa: PLR0913  # the members of RFC 9457
    status: int,
    code: str,
    detail: str,
    *,
    field: str | None = None,
    hint: str | None = None,
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> Response:
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        **({"field": field} if field else {}),
        **({"hint": hint} if hint else {}),
        **members,
    }
    return Response(
        json.dumps(body, default=str), status_code=status, media_type=MEDIA_TYPE, headers=headers
    )


class Problem(BaseModel):
    """RFC 9457. `code` is a stable word for programs, `detail` a sentence for people."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    """The path of the wrong value in the request, like `jobs.17.payload.answer`."""
    hint: str | None = None


def documented(*statuses: int) -> dict[int, dict[str, Any]]:
    """Return the error answers as the OpenAPI document describes them."""
    schema = {"$ref": f"#/components/schemas/{Problem.__name__}"}
    return {
        status: {
            "description": _MEANINGS.get(status, HTTPStatus(status).phrase),
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        for status in statuses
    }


async def on_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)  # noqa: S101  # registered for it
    headers = {}
    if (wait := error.members.get("retry_after")) is not None:
        headers["Retry-After"] = str(math.ceil(float(wait)))
    if error.code in _PASSING:
        headers["Retry-After"] = str(RETRY_SECONDS)
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return problem(
        error.status,
        error.code,
        error.message,
        field=error.field,
        hint=error.hint or None,
        headers=headers,
        **error.members,
    )


async def on_unavailable(_: Request, error: Exception) -> Response:
    if isinstance(error, DiskFull):
        return problem(
            503,
            "disk_full",
            "the database's disk is full; nothing was written",
            hint="Try again later: it works as soon as an operator has freed disk space.",
            headers={"Retry-After": str(FULL_SECONDS)},
        )
    if isinstance(error, RolledBack):
        return problem(
            503,
            error.code,
            str(error),
            hint=error.hint,
            headers={"Retry-After": str(RETRY_SECONDS)},
        )
    return problem(
        503,
        "unavailable",
        "the database cannot be reached; whether this call took effect may be unknown",
        hint="Try again; a submit with the same Idempotency-Key is safe to repeat.",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )


async def on_http(request: Request, error: Exception) -> Response:
    """Answer errors of Starlette: no such route, no such method."""
    assert isinstance(error, HTTPException)  # noqa: S101  # registered for it
    code = _CODES.get(error.status_code, "refused")
    headers = dict(error.headers or ())
    detail, hint = str(error.detail), None
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail, hint = "there is nothing at this address", "/docs shows every call."
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
        detail = f"this address accepts {headers['Allow']}, but not {request.method}"
    return problem(error.status_code, code, detail, hint=hint, headers=headers)


def _methods(request: Request) -> set[str]:
    """The methods of all routes with this path: each route knows only its own."""
    return {
        method
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }


async def on_disconnect(_: Request, __: Exception) -> Response:
    """Answer a client that disconnected while it was sending; it does not read this."""
    return problem(400, "incomplete", "the body ended before it was complete")


async def on_fault(request: Request, error: Exception) -> Response:
    """Answer an error in the server: details go to the log, and not to the caller."""
    # The route's pattern, not the path, which names accounts.
    route = getattr(request.scope.get("route"), "path", "unknown")
    _log.error("a request failed", exc_info=error, extra={"method": request.method, "route": route})
    # This answer does not pass the middleware that adds these headers to all others.
    headers = {
        **SECURITY_HEADERS,
        "X-Request-ID": request.scope.get("penstock.request", ""),
    }
    return problem(
        500, "internal_error", "the server failed; the error has been logged", headers=headers
    )


HANDLERS = {
    Refused: on_refused,
    Unavailable: on_unavailable,
    HTTPException: on_http,
    ClientDisconnect: on_disconnect,
    PenstockError: on_fault,
    Exception: on_fault,
}
