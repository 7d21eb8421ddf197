"""Live streams over HTTP (server-sent events): a job, a batch, a topic, an account."""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.encoding.encode import refuse_nul
from penstock.engine.queries.events import Scope, WatchedJob, WatchRequest
from penstock.errors import NotFound
from penstock.http.auth.caller import Principal, Reader, unknown_account
from penstock.http.backend import Backend
from penstock.http.live.feeds import Cursor, Watcher
from penstock.http.middleware.limits import limits
from penstock.http.routing import HEADER, Routes

routes = Routes("events", noun="stream")

LastHeader = Annotated[
    str | None,
    HEADER,
    Field(alias="Last-Event-ID", description="Continue after this event; browsers send it."),
]
LastQuery = Annotated[
    str | None, Field(description="The same, for clients that cannot send the header.")
]

RETRY_MILLISECONDS = 2_000
# How much is passed to the connection at once. Events that a slow client has not read yet stay in
# memory only once, for all clients.
SLICE_BYTES = 16_384

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # Keeps proxies from storing and buffering it.
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_BEGIN = f"retry: {RETRY_MILLISECONDS}\n\n".encode()
_HEARTBEAT = b":\n\n"


_ID = re.compile(r"\d{1,9}\.(\d{1,9})\.(\d{1,9})")


class EventStream(Response):
    """Sends the events of a watcher until it is finished or the client disconnects.

    Written in plain ASGI: Starlette's streaming answer keeps four tasks and a dozen objects per
    client.
    """

    media_type = "text/event-stream"

    def __init__(self, watch: Callable[[], Watcher[Any]]) -> None:
        """`watch` is called when the answer begins."""
        self.status_code = 200
        self.background = None
        self.body = b""
        self.raw_headers = list(_HEADERS)
        self._watch = watch

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002  # ASGI
        # Not earlier: an answer that is never sent would keep its watcher for ever.
        watcher = self._watch()
        disconnect = asyncio.get_running_loop().create_task(_until_disconnect(receive, watcher))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await _send(send, watcher, _BEGIN)
            while not watcher.closed:
                # No `await` may stand between this and `wait`: a wake-up would be missed.
                events = await watcher.events()
                if events:
                    await _send(send, watcher, events)
                elif watcher.finished:
                    break
                elif await watcher.wait():
                    await _send(send, watcher, _HEARTBEAT)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            pass  # raised by servers when the client has disconnected
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not watcher.stalled or task is None:
                raise
            task.uncancel()  # `abort` cancelled it: this answer ends here
        finally:
            watcher.leave()
            disconnect.cancel()


async def _send(send: Any, watcher: Watcher[Any], events: bytes) -> None:
    for at in range(0, len(events), SLICE_BYTES):
        if watcher.closed:
            return
        watcher.begin_send()
        body = events[at : at + SLICE_BYTES]
        await send({"type": "http.response.body", "body": body, "more_body": True})
    watcher.end_send()


async def _until_disconnect(receive: Any, watcher: Watcher[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    watcher.close()


def _documented(description: str, example: str) -> dict[int, dict[str, Any]]:
    content = {"text/event-stream": {"schema": {"type": "string"}, "example": example}}
    return {200: {"description": description, "content": content}}


@routes.add(
    "GET",
    "/v1/jobs/{job_id}/events",
    summary="Watch a job",
    responses=_documented(
        "`job` now and with each change, `chunk` for each chunk of its attempts; the stream ends "
        "when the job has finished",
        'id: 3.1.0\nevent: job\ndata: {"id": "…", "status": "running"}\n\n'
        'id: 3.1.1\nevent: chunk\ndata: {"attempt": 1, "seq": 1, "data": "Once"}\n\n',
    ),
)
async def job(  # noqa: PLR0913, PLR0917  # one per parameter of the contract
    job_id: UUID,
    request: Request,
    principal: Reader,
    backend: Backend,
    last: LastHeader = None,
    last_event_id: LastQuery = None,
) -> Response:
    """While the job is queued, an event is sent when its position or ETA changes."""
    allowed = principal.job in (None, str(job_id))
    watch_request = WatchRequest("job", str(job_id), principal.account, principal.topic)
    if not allowed or not await backend.live.may_watch(watch_request):
        raise NotFound(
            f"there is no job {job_id}",
            code="unknown_job",
            field="id",
            hint="Finished jobs are kept for the retention of their queue.",
        )
    cursor = _cursor(last_event_id if last is None else last)
    watched = WatchedJob(job_id, not principal.sees_all)
    return _stream(request, principal, backend.live.watch_job, watched, cursor)


@routes.add(
    "GET",
    "/v1/batches/{batch_id}/events",
    summary="Watch a batch",
    responses=_documented(
        "`batch` now and with each change",
        'event: batch\ndata: {"id": "…", "total": 2, "succeeded": 1}\n\n',
    ),
)
async def batch(batch_id: UUID, request: Request, principal: Reader, backend: Backend) -> Response:
    principal.refuse_narrow("a token for a job or a topic gives no access to batches")
    if not await backend.live.may_watch(
        WatchRequest("batch", str(batch_id), principal.account, None)
    ):
        raise NotFound(
            f"there is no batch {batch_id}",
            code="unknown_batch",
            field="id",
            hint="Batches are kept as long as their jobs.",
        )
    watched = WatchedJob(batch_id, not principal.sees_all)
    return _stream(request, principal, backend.live.watch_batch, watched)


_SCOPE = (
    " Begins with all live jobs and those that finished in the last five minutes. `resync`: there "
    "are too many jobs, or this client was too slow; read the list instead"
)


@routes.add(
    "GET",
    "/v1/topics/{topic:path}/events",
    summary="Watch the jobs of a topic",
    responses=_documented(
        f"`job` with each change of a job of the topic.{_SCOPE}",
        'event: job\ndata: {"id": "…", "topic": "a1", "status": "succeeded"}\n\n',
    ),
)
async def topic(topic: str, request: Request, principal: Reader, backend: Backend) -> Response:
    """A key of an account sees only the account's own jobs of the topic."""
    refuse_nul(topic, "topic")
    principal.refuse_narrow("this token gives no access to this topic", topic=topic)
    scope = Scope(topic, principal.account, not principal.sees_all)
    return _stream(request, principal, backend.live.watch_scope, scope)


@routes.add(
    "GET",
    "/v1/accounts/{account_id}/events",
    summary="Watch an account",
    responses=_documented(
        "`account` with each change of its balance or jobs, `job` with each change of a job."
        f"{_SCOPE}",
        'event: account\ndata: {"id": "u1", "balance": 7, "plan": "free", "running": 1, '
        '"queued": 2}\n\n',
    ),
)
async def account(
    account_id: str, request: Request, principal: Reader, backend: Backend
) -> Response:
    refuse_nul(account_id, "account")
    principal.refuse_narrow("a token for a job or a topic gives no access to accounts")
    watch_request = WatchRequest("account", account_id, principal.account, None)
    if not await backend.live.may_watch(watch_request):
        raise unknown_account(account_id)
    scope = Scope(None, account_id, not principal.sees_all)
    return _stream(request, principal, backend.live.watch_scope, scope)


def _stream(
    request: Request, principal: Principal, watch: Callable[..., Watcher[Any]], *watched: Any
) -> Response:
    """Open a stream. It ends if the key is revoked, the token expires or its grant is withdrawn."""
    limits(request).hold_stream(request.scope, principal)
    caller = {"key": principal.key, "expires": principal.expires, "grant": principal.grant}
    return EventStream(partial(watch, *watched, **caller))


def _cursor(last: str | None) -> Cursor:
    """Return the cursor after this event, or of the first chunk if it is not an event id."""
    event_id = _ID.fullmatch(last or "")
    return (int(event_id[1]), int(event_id[2])) if event_id else (0, 0)
