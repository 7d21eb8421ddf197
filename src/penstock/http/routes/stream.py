"""Live streams over HTTP (server-sent events): a job, a batch, a topic, an account."""

import re
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.encoding.encode import refuse_nul
from penstock.engine.queries.events import Scope, Watched, WatchedJob
from penstock.errors import NotAllowed, NotFound
from penstock.http.auth.caller import Principal, Reader
from penstock.http.backend import Backend
from penstock.http.live.sse import EventStream
from penstock.http.live.subscriptions import Cursor
from penstock.http.middleware.limits import limits
from penstock.http.routing import HEADER, Routes

routes = Routes("events", noun="stream")

LastHeader = Annotated[
    str | None,
    HEADER,
    Field(alias="Last-Event-ID", description="Go on after this event; browsers send it."),
]
LastQuery = Annotated[
    str | None, Field(description="The same, for clients that cannot send the header.")
]

_ID = re.compile(r"\d{1,9}\.(\d{1,9})\.(\d{1,9})")


def _documented(description: str, example: str) -> dict[int, dict[str, Any]]:
    content = {"text/event-stream": {"schema": {"type": "string"}, "example": example}}
    return {200: {"description": description, "content": content}}


@routes.add(
    "GET",
    "/v1/jobs/{job_id}/events",
    summary="Watch a job",
    responses=_documented(
        "`job` now and with each change, `chunk` as its starts emit; ends with the job",
        'id: 3.1.0\nevent: job\ndata: {"id": "…", "status": "running"}\n\n'
        'id: 3.1.1\nevent: chunk\ndata: {"attempt": 1, "seq": 1, "data": "Once"}\n\n',
    ),
)
async def job(  # noqa: PLR0913, PLR0917  # one per parameter of the contract
    job_id: UUID,
    request: Request,
    principal: Reader,
    behind: Backend,
    last: LastHeader = None,
    last_event_id: LastQuery = None,
) -> Response:
    """Place and wait of one that waits are told as they change."""
    theirs = principal.job in (None, str(job_id))
    wanted = Watched("job", str(job_id), principal.account, principal.topic)
    if not theirs or not await behind.live.may_watch(wanted):
        raise NotFound(
            f"there is no job {job_id}",
            code="unknown_job",
            field="id",
            hint="Finished jobs are kept for the retention of their queue.",
        )
    cursor = _cursor(last_event_id if last is None else last)
    limits(request).hold_stream(request.scope, principal)
    return EventStream(
        lambda: behind.live.watch_job(
            WatchedJob(job_id, not principal.sees_all), cursor, **_who(principal)
        )
    )


@routes.add(
    "GET",
    "/v1/batches/{batch_id}/events",
    summary="Watch a batch",
    responses=_documented(
        "`batch` now and with each change",
        'event: batch\ndata: {"id": "…", "total": 2, "succeeded": 1}\n\n',
    ),
)
async def batch(batch_id: UUID, request: Request, principal: Reader, behind: Backend) -> Response:
    _refuse_narrow(principal, "batch", topic=True)
    if not await behind.live.may_watch(Watched("batch", str(batch_id), principal.account, None)):
        raise NotFound(
            f"there is no batch {batch_id}",
            code="unknown_batch",
            field="id",
            hint="Batches are kept as long as their jobs.",
        )
    limits(request).hold_stream(request.scope, principal)
    return EventStream(
        lambda: behind.live.watch_batch(
            WatchedJob(batch_id, not principal.sees_all), **_who(principal)
        )
    )


_SCOPE = (
    " Begins with every live job and those that ended in the last five minutes; `resync`: there "
    "are too many, or this client was too slow: read the list"
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
async def topic(topic: str, request: Request, principal: Reader, behind: Backend) -> Response:
    """A key of an account sees its own jobs of the topic."""
    refuse_nul(topic, "topic")
    _refuse_narrow(principal, "topic", topic=principal.topic != topic)
    limits(request).hold_stream(request.scope, principal)
    return EventStream(
        lambda: behind.live.watch_scope(
            Scope(topic, principal.account, not principal.sees_all), **_who(principal)
        )
    )


@routes.add(
    "GET",
    "/v1/accounts/{account_id}/events",
    summary="Watch an account",
    responses=_documented(
        f"`account` with each change of its balance or jobs, `job` with each of a job.{_SCOPE}",
        'event: account\ndata: {"id": "u1", "balance": 7, "plan": "free", "running": 1, '
        '"queued": 2}\n\n',
    ),
)
async def account(
    account_id: str, request: Request, principal: Reader, behind: Backend
) -> Response:
    refuse_nul(account_id, "account")
    _refuse_narrow(principal, "account", topic=True)
    wanted = Watched("account", account_id, principal.account, None)
    if not await behind.live.may_watch(wanted):
        raise NotFound(
            f"there is no account {account_id}",
            code="unknown_account",
            field="account",
            account=account_id,
        )
    limits(request).hold_stream(request.scope, principal)
    return EventStream(
        lambda: behind.live.watch_scope(
            Scope(None, account_id, not principal.sees_all), **_who(principal)
        )
    )


def _who(principal: Principal) -> dict[str, Any]:
    """What ends the stream: its key is revoked, its token is over."""
    return {"key": principal.key, "expires": principal.expires, "grant": principal.grant}


def _refuse_narrow(principal: Principal, what: str, *, topic: bool) -> None:
    """A token for one thing opens no other."""
    if principal.job is not None or (principal.topic is not None and topic):
        raise NotAllowed(
            f"a token for another thing opens no {what}",
            code="not_allowed",
            hint="Ask for a token for the account.",
        )


def _cursor(last: str | None) -> Cursor:
    """The place in a job's stream. What is not one of ours begins at the beginning."""
    found = _ID.fullmatch(last or "")
    return (int(found[1]), int(found[2])) if found else (0, 0)
