"""Each request: an id that is answered and logged, a line about it, and how long it took.

What is logged is what we chose: the route's pattern, never the path with its query, so no token;
ids of jobs and keys, never what they carry or open.
"""

import logging
import random
import re
import time
from bisect import bisect_left
from collections import defaultdict
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from uuid import UUID

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.base import logs
from penstock.http.middleware import limits, problems, security_headers

HEADER = "X-Request-ID"
_HEADER = HEADER.lower().encode()
_SANE = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ID_BITS = 64
# The caller went before there was an answer.
_CLIENT_GONE = 499
# Asked every few seconds by machines: worth a line only when the answer is bad.
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"})
# In seconds, until the answer begins; the last is endless.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

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


_scope: ContextVar[Scope | None] = ContextVar("request_scope", default=None)


def note_job(job_id: UUID) -> None:
    """The request that is being answered is about this job: its line in the log says so."""
    scope = _scope.get()
    if scope is not None:
        scope["penstock.job"] = job_id


class Requests:
    """Pure ASGI, around everything else: it sees the answers of Starlette, too."""

    def __init__(self, app: ASGIApp, counts: Counts) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _sane_id(scope) or _new_id()
        # Not taken back: each request runs in a task of its own, and its errors are logged later.
        logs.request_id.set(request_id)
        _scope.set(scope)
        scope["penstock.request"] = request_id
        begun = time.perf_counter()
        status = 0
        answered = begun

        async def tell(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = time.perf_counter()
                headers = security_headers.completed(message.get("headers", ()))
                message["headers"] = [*headers, (_HEADER, request_id.encode())]
            await send(message)

        self._counts.open += 1
        try:
            wrong = security_headers.wrong_host(scope)
            if wrong is None:
                await self._app(scope, receive, tell)
            else:
                refusal = problems.problem(
                    400, "bad_request", wrong, hint=security_headers.HOST_HINT
                )
                await refusal(scope, receive, tell)
        except Exception:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            raise
        finally:
            limits.release_all(scope)
            self._counts.open -= 1
            ended = time.perf_counter()
            route = _route(scope)
            if status:
                waited = (answered if answered > begun else ended) - begun
                self._counts.count(route, status, waited)
            _tell_log(scope, route, status or _CLIENT_GONE, ended - begun)


def _new_id() -> str:
    # Nothing is opened with it: no need to ask the kernel for each.
    return f"{random.getrandbits(_ID_BITS):016x}"


def _sane_id(scope: Scope) -> str | None:
    """The caller's own id, so that its log and ours can be laid side by side."""
    for name, value in scope["headers"]:
        if name == _HEADER:
            return value.decode() if _SANE.fullmatch(value) else None
    return None


def _route(scope: Scope) -> Route:
    """Method and pattern. What matches no route is one thing, or anyone could fill the memory."""
    method = scope["method"] if scope["method"] in _METHODS else "other"
    return method, getattr(scope.get("route"), "path", "unknown")


def _tell_log(scope: Scope, route: Route, status: int, seconds: float) -> None:
    is_routine = route[1] in _QUIET and status < HTTPStatus.BAD_REQUEST
    level = logging.DEBUG if is_routine else logging.INFO
    if not _log.isEnabledFor(level):
        return
    more = {"method": route[0], "route": route[1], "status": status, "ms": round(seconds * 1000, 1)}
    if (key := scope.get("penstock.key")) is not None:
        more["key"] = key
    job = scope.get("penstock.job") or scope.get("path_params", {}).get("job_id")
    if job is not None and (job := _as_uuid(job)) is not None:
        more["job"] = job
    _log.log(level, "request", extra=more)


def _as_uuid(text: object) -> str | None:
    try:
        return str(UUID(str(text)))
    except ValueError:
        return None
