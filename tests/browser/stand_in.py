"""A stand-in for Penstock's API that does what a test tells it, event by event.

Every state of a job can be shown with it, and every way in which a stream, an answer or a token may
fail. What the real server sends is tested beside it, in test_component_live.py.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.middleware.cors import CORSMiddleware

import penstock
from journeys.browser import served
from support.waiting import eventually

STATIC = Path(penstock.__file__).parent / "dashboard" / "static"
LOOK_SECONDS = 0.02
DOT = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
"""A picture of one pixel."""
FINAL = ("succeeded", "failed", "cancelled")
PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8"><meta name="viewport" content="width=device-width">
  <title>A page of an app</title><link rel="icon" href="data:,">
  <link rel="stylesheet" href="/page.css">
  <script type="module" src="{script}"></script>
</head>
<body><main><h1>My work</h1>{body}</main></body>
</html>"""
CSS = ":root { color-scheme: light dark; font-family: sans-serif }"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:"
)


def job(name: str, **fields: Any) -> dict[str, Any]:
    """A job as the API tells it."""
    return {
        **_SOME_JOB,
        "id": name,
        "created_at": moment(),
        "updated_at": moment(),
        "run_at": moment(),
        **fields,
    }


def moment(**ago: float) -> str:
    """So long ago, as `timedelta` takes it; negative: in the future."""
    return (datetime.now(UTC) - timedelta(**ago)).isoformat().replace("+00:00", "Z")


@dataclass
class Stream:
    """A client that listens."""

    path: str
    query: Mapping[str, str]
    last: str | None
    events: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)


class StandIn:
    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.streams: list[Stream] = []
        """Those that are open."""
        self.opened = 0
        """How many streams there have been."""
        self.most_at_once = 0
        """Of looks at jobs."""
        self._looks = 0
        self.calls: list[str] = []
        """All that came, as "GET /v1/jobs/a", without queries."""
        self.asked: list[Request] = []
        self.answers: dict[str, int | Response] = {}
        """What is answered instead, by "GET /v1/jobs/a"."""
        self.is_mute = False
        """Streams stay open and tell nothing."""
        self.retry_ms = 50
        self.patience = 1
        """Retry-After, in seconds."""
        self.tokens: set[str] | None = None
        """The good ones; None: nobody is asked."""
        self.policy: str | None = POLICY
        self.pages: dict[str, str] = {}
        self.base = ""
        self._version = 0
        self._chunks: dict[str, list[str]] = {}

    # --- what a test does ------------------------------------------------------------------------

    def put(self, name: str, **fields: Any) -> dict[str, Any]:
        """A job is so now, and who listens hears it. What is not named stays as it was."""
        self._version += 1
        old = self.jobs.get(name) or job(name)
        now = {**old, **fields, "version": self._version, "updated_at": moment()}
        self.jobs[name] = now
        self._tell(name, _event("job", now, f"{self._version}.0.0"), final=now["status"] in FINAL)
        return now

    def emit(self, name: str, data: Any, *, attempt: int = 1) -> None:
        kept = self._chunks.setdefault(name, [])
        seq = len(kept) + 1
        chunk = {"attempt": attempt, "seq": seq, "data": data}
        kept.append(_event("chunk", chunk, f"{self._version}.{attempt}.{seq}"))
        self._tell(name, kept[-1])

    def tell(self, path: str, event: str, data: Any) -> None:
        """Anything, to those who listen at this path."""
        for stream in self.streams:
            if stream.path == path:
                stream.events.put_nowait(_event(event, data))

    def cut(self) -> None:
        """End all streams, as a proxy does that has had enough."""
        for stream in self.streams:
            stream.events.put_nowait(None)

    def fail(self, status: int, *routes: str) -> None:
        for route in routes:
            self.answers[route] = status

    def mend(self) -> None:
        self.answers.clear()

    def count(self, route: str) -> int:
        return self.calls.count(route)

    def called(self, start: str) -> list[str]:
        return [one for one in self.calls if one.startswith(start)]

    async def until_called(self, route: str, times: int = 1, *, seconds: float = 10) -> None:
        async def came() -> bool:
            return self.count(route) >= times

        await eventually(came, f"{times} times {route}, of {self.calls}", seconds=seconds)

    async def until_opened(self, count: int) -> None:
        async def were() -> bool:
            return self.opened >= count

        await eventually(were, f"{count} streams were opened")

    async def until_streams(self, count: int, *, seconds: float = 10) -> None:
        async def are() -> bool:
            return len(self.streams) == count

        await eventually(are, f"{count} open streams", seconds=seconds)

    # --- what a browser gets ---------------------------------------------------------------------

    def app(self) -> FastAPI:
        app = FastAPI()
        app.get("/v1/jobs")(self._list)
        app.get("/v1/jobs/{name}")(self._read)
        app.get("/v1/batches/{name}")(self._read)
        app.post("/v1/jobs/{name}/cancel")(self._cancel)
        app.get("/v1/{rest:path}/events")(self._listen)
        app.get("/v1/accounts/{name}")(self._account)
        app.get("/v1/uploads/{name}")(self._upload)
        app.get("/pages/{name:path}")(self._page)
        app.get("/page.css")(lambda: Response(CSS, media_type="text/css"))
        app.mount("/static", _Static(directory=STATIC))
        app.add_middleware(
            CORSMiddleware,
            allow_origins=["*"],
            allow_headers=["Authorization", "If-None-Match"],
            allow_methods=["GET", "POST"],
            expose_headers=["ETag", "Retry-After"],
        )
        return app

    async def _page(self, name: str) -> HTMLResponse:
        headers = {"Content-Security-Policy": self.policy} if self.policy else {}
        script = f"{self.base}/static/penstock.js"
        return HTMLResponse(PAGE.format(script=script, body=self.pages[name]), headers=headers)

    def _refusal(self, request: Request) -> Response | None:
        route = f"{request.method} {request.url.path}"
        self.calls.append(route)
        self.asked.append(request)
        told = self.answers.get(route)
        if told is None and not self._is_known(request):
            told = 401
        if isinstance(told, int):
            return JSONResponse({"code": "told_so", "detail": f"it is a {told}"}, told)
        return told

    def _is_known(self, request: Request) -> bool:
        if self.tokens is None:
            return True
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        return (bearer or request.query_params.get("token")) in self.tokens

    async def _read(self, request: Request, name: str) -> Response:
        self._looks += 1
        self.most_at_once = max(self.most_at_once, self._looks)
        try:
            # Long enough for another to come meanwhile, if there is one.
            await asyncio.sleep(LOOK_SECONDS)
            return self._found(request, name)
        finally:
            self._looks -= 1

    def _found(self, request: Request, name: str) -> Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        if name not in self.jobs:
            return JSONResponse({"code": "unknown_job", "detail": "there is no such job"}, 404)
        body = json.dumps(self.jobs[name])
        headers = {"ETag": f'"{self.jobs[name].get("version")}"'}
        if self.jobs[name]["status"] not in FINAL:
            headers["Retry-After"] = str(self.patience)
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="application/json", headers=headers)

    async def _list(self, request: Request) -> Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        topic = request.query_params.get("topic")
        found = [one for one in self.jobs.values() if topic in (None, one["topic"])]
        return JSONResponse({"items": found, "next_cursor": None})

    async def _account(self, request: Request, name: str) -> Response:
        return self._refusal(request) or JSONResponse({"id": name, "balance": 7})

    async def _upload(self, request: Request, name: str) -> Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        if name == "dot":
            return Response(base64.b64decode(DOT), media_type="image/png")
        return Response("a text", media_type="text/plain")

    async def _cancel(self, request: Request, name: str) -> Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        is_running = self.jobs[name]["status"] == "running"
        ends = {"cancel_requested": True} if is_running else {"status": "cancelled"}
        return JSONResponse(self.put(name, **ends))

    async def _listen(self, request: Request, rest: str) -> Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        what, _, name = rest.partition("/")
        if what in ("jobs", "batches") and name not in self.jobs:
            return JSONResponse({"code": "unknown_job", "detail": "there is no such job"}, 404)
        last = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
        stream = Stream(request.url.path, request.query_params, last)
        return StreamingResponse(self._events(stream, what, name), media_type="text/event-stream")

    async def _events(self, stream: Stream, what: str, name: str) -> AsyncIterator[str]:
        self.streams.append(stream)
        self.opened += 1
        try:
            yield f"retry: {self.retry_ms}\n\n"
            for known in self._snapshot(stream, what, name):
                yield known
            while (event := await stream.events.get()) is not None:
                if not self.is_mute:
                    yield event
        finally:
            self.streams.remove(stream)

    def _snapshot(self, stream: Stream, what: str, name: str) -> list[str]:
        if self.is_mute:
            return []
        if what in ("jobs", "batches"):
            now = self.jobs[name]
            had = int((stream.last or "0.0.0").split(".")[2])
            chunks = self._chunks.get(name, [])[had:]
            first = _event("job" if what == "jobs" else "batch", now, f"{self._version}.1.{had}")
            if now["status"] in FINAL:
                stream.events.put_nowait(None)
                return [*chunks, first]
            return [first, *chunks]
        mine = [one for one in self.jobs.values() if what != "topics" or one["topic"] == name]
        return [_event("job", one) for one in mine]

    def _tell(self, name: str, event: str, *, final: bool = False) -> None:
        topic = self.jobs[name]["topic"] if name in self.jobs else None
        for stream in self.streams:
            if stream.path in (f"/v1/jobs/{name}/events", f"/v1/batches/{name}/events"):
                stream.events.put_nowait(event)
                if final:
                    stream.events.put_nowait(None)
            elif stream.path == f"/v1/topics/{topic}/events" and "event: job" in event:
                stream.events.put_nowait(event)


class _Static(StaticFiles):
    async def get_response(self, path: str, scope: Any) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Access-Control-Allow-Origin"] = "*"
        return response


@asynccontextmanager
async def standing_in() -> AsyncIterator[StandIn]:
    stand_in = StandIn()
    async with served(stand_in.app(), stand_in.cut) as port:
        stand_in.base = f"http://127.0.0.1:{port}"
        yield stand_in


def _event(name: str, data: Any, last: str | None = None) -> str:
    head = f"id: {last}\n" if last else ""
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n"


_SOME_JOB: dict[str, Any] = {
    "kind": "mark",
    "queue": "ollama",
    "account": "u1",
    "plan": "free",
    "topic": "a1",
    "batch": None,
    "status": "queued",
    "priority": 50,
    "first_job": False,
    "attempt": 0,
    "failures": 0,
    "deferrals": 0,
    "max_attempts": 3,
    "metadata": {},
    "started_at": None,
    "timeout_at": None,
    "finished_at": None,
    "stage": None,
    "stage_label": None,
    "stage_at": None,
    "progress": None,
    "result": None,
    "usage": None,
    "error": None,
    "position": None,
    "eta_seconds": None,
    "waiting_for": None,
    "staleness": None,
    "recovery": {"count": 0, "max": 3, "last_at": None, "next_at": None},
    "credits": None,
    "cancel_requested": False,
    "retry_of": None,
    "retried_by": None,
    "version": 0,
    "attempts": [],
}
