"""Middleware around each request and its answer, for all routes.

Requests: gives each request an id, which is in the answer and the log; writes one log line, with
the duration. Only chosen values are logged: the route's pattern, never the path and its query,
which may have a token; ids of jobs and keys, never their contents. A request must have one Host
header only: otherwise a proxy in front might read another one than we do. After a request that may
have changed something, watchers at this server and others are notified.

LargeAnswers: counts a large answer until its client has read it, and sends it in pieces. A server
keeps an answer in memory until its client has read it. A page of a list may have 9 MB, and a client
may request many of them and read none.
"""

import logging
import random
import re
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.base import logs
from penstock.errors import RateLimited
from penstock.http.live.hub import Hub
from penstock.http.middleware import limits, problems

HEADER = "X-Request-ID"
_HEADER = HEADER.lower().encode()
_JOB_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_SANE = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ID_BITS = 64
# The client disconnected before it had an answer.
_CLIENT_CLOSED = 499
# Machines request these every few seconds: they are logged only when they fail.
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"})
# Bounds of the latency histogram in seconds, until the answer begins; the last bucket has none.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_DEFAULTS = [
    (name.lower().encode(), value.encode()) for name, value in problems.SECURITY_HEADERS.items()
]
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+;=:\[\]-]{0,255}")
_HOST_HINT = "HTTP/1.1 requires exactly one Host header, like Host: queue.example.org"
# Smaller answers fit nearly completely into the system's buffers.
LARGE_BYTES = 256 * 1024
PIECE_BYTES = 64 * 1024

# Answers of other methods are never refused: their change has been made already.
_BOUNDED = frozenset({"GET", "HEAD"})

Header = tuple[bytes, bytes]

_log = logging.getLogger("penstock.http")

Route = tuple[str, str]
"""Method and pattern."""


@dataclass(slots=True)
class Latency:
    """How long the answers of a route took to begin."""

    seconds: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))


class Counts:
    """The requests of this process since it started. Routes are few, so this stays small."""

    def __init__(self) -> None:
        self.answers: defaultdict[tuple[str, str, int], int] = defaultdict(int)
        self.latencies: defaultdict[Route, Latency] = defaultdict(Latency)
        self.open = 0

    def count(self, route: Route, status: int, seconds: float) -> None:
        self.answers[*route, status] += 1
        latency = self.latencies[route]
        latency.seconds += seconds
        latency.counts[bisect_left(BOUNDS, seconds)] += 1


class Requests:
    """The outermost middleware, in pure ASGI: Starlette's own answers pass it, too."""

    def __init__(self, app: ASGIApp, counts: Counts) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The id gives access to nothing, so the kernel's randomness is not needed.
        request_id = _sane_id(scope) or f"{random.getrandbits(_ID_BITS):016x}"
        # Not reset: each request has its own task, and its errors are logged later.
        logs.request_id.set(request_id)
        scope["penstock.request"] = request_id
        begun = time.perf_counter()
        status = 0
        answered = begun

        async def send_completed(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = time.perf_counter()
                headers = _completed(message.get("headers", ()))
                message["headers"] = [*headers, (_HEADER, request_id.encode())]
            await send(message)

        self._counts.open += 1
        try:
            wrong = _wrong_host(scope)
            if wrong is None:
                await self._app(scope, receive, send_completed)
                if scope["method"] not in _READS:
                    live: Hub = scope["app"].state.backend.live
                    live.notify()
            else:
                refusal = problems.problem(400, "bad_request", wrong, hint=_HOST_HINT)
                await refusal(scope, receive, send_completed)
        except Exception:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            raise
        finally:
            limits.release_all(scope)
            self._counts.open -= 1
            finished = time.perf_counter()
            route = _route(scope)
            if status:
                latency = (answered if answered > begun else finished) - begun
                self._counts.count(route, status, latency)
            _log_request(scope, route, status or _CLIENT_CLOSED, finished - begun)


def _sane_id(scope: Scope) -> str | None:
    """The caller's own request id, by which its log can be compared with ours."""
    for name, value in scope["headers"]:
        if name == _HEADER:
            return value.decode() if _SANE.fullmatch(value) else None
    return None


def _route(scope: Scope) -> Route:
    """Method and pattern. Unknown paths share one name, or requests could fill the memory."""
    method = scope["method"] if scope["method"] in _METHODS else "other"
    return method, getattr(scope.get("route"), "path", "unknown")


def _log_request(scope: Scope, route: Route, status: int, seconds: float) -> None:
    is_routine = route[1] in _QUIET and status < HTTPStatus.BAD_REQUEST
    level = logging.DEBUG if is_routine else logging.INFO
    if not _log.isEnabledFor(level):
        return
    more = {"method": route[0], "route": route[1], "status": status, "ms": round(seconds * 1000, 1)}
    if (key := scope.get("penstock.key")) is not None:
        more["key"] = key
    job = str(scope.get("penstock.job") or scope.get("path_params", {}).get("job_id"))
    if _JOB_ID.fullmatch(job):
        more["job"] = job.lower()
    _log.log(level, "request", extra=more)


def _wrong_host(scope: Scope) -> str | None:
    """Return what is wrong with the Host of a request; None: nothing."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) > 1:
        return "the request has more than one Host header"
    if not hosts:
        return "the request has no Host header" if scope["http_version"] == "1.1" else None
    return None if _HOST.fullmatch(hosts[0]) else "the Host header is not the name of a host"


def _completed(headers: Iterable[Header]) -> list[Header]:
    """The headers of an answer, with the missing default headers added."""
    present = list(headers)
    names = {name.lower() for name, _ in present}
    return present + [default for default in _DEFAULTS if default[0] not in names]


class _AnswerRefusedError(Exception):
    """Stops the route whose answer was refused, so that it produces no more of it."""


class LargeAnswers:
    """Middleware around the routes, in pure ASGI."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _BOUNDED:
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def send_bounded(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_large(message):
                start = message  # sent with the first bytes, unless they are refused
                return
            body = message.get("body", b"")
            if start is not None:
                if await _refuse(scope, receive, send, len(body)):
                    raise _AnswerRefusedError
                await send(start)
                start = None
            if len(body) < LARGE_BYTES:
                await send(message)
                return
            more = message.get("more_body", False)
            # The server accepts a piece when the client has read most of the earlier ones.
            for at in range(0, len(body), PIECE_BYTES):
                piece, goes_on = body[at : at + PIECE_BYTES], more or at + PIECE_BYTES < len(body)
                await send({"type": "http.response.body", "body": piece, "more_body": goes_on})

        with suppress(_AnswerRefusedError):
            await self._app(scope, receive, send_bounded)


async def _refuse(scope: Scope, receive: Receive, send: Send, amount: int) -> bool:
    """Count these bytes of an answer; return True if they were too many and a refusal was sent."""
    request = Request(scope)
    try:
        limits.limits(request).hold_answer(request, amount)
    except (RateLimited, HTTPException) as error:
        answer = problems.on_http if isinstance(error, HTTPException) else problems.on_refused
        await (await answer(request, error))(scope, receive, send)
        return True
    return False


def _is_large(start: Message) -> bool:
    for name, value in start.get("headers", ()):
        if name == b"content-length":
            return int(value) >= LARGE_BYTES
    return False
