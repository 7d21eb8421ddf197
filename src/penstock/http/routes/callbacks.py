"""Callbacks: functions outside say how the jobs that were handed to them went.

Who calls proves it by the token of the start, by a signature over the raw body (Standard Webhooks),
or by the secret that the kind shares with its function; in an array each item has its token. Each
item then stands for itself, and the fence in the database has the last word (callbacks.sql).
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.jobs.callbacks import Item
from penstock.errors import Invalid, Unauthorized
from penstock.http.auth.callbacks import (
    Caller,
    holds_token,
    only_item,
    parse,
    read_item,
    unknown_caller,
)
from penstock.http.auth.caller import bearer
from penstock.http.backend import Backend
from penstock.http.middleware.problems import problem
from penstock.http.routing import Routes, read_body
from penstock.http.schemas.answers import Answer
from penstock.security import callback_token

routes = Routes("callbacks")

# Several times what a result may have, written with spaces perhaps; and many of them.
SINGLE_BYTES = 4 * 1024 * 1024
ARRAY_BYTES = 16 * 1024 * 1024
MOST_ITEMS = 1_000
# How long to wait for an account that an app's transaction holds.
PATIENCE_SECONDS = 2.0
_WAIT = timedelta(seconds=0.5)
_RETRY_SECONDS = 0.05
# What the database cannot store, although it is JSON.
_UNFIT = (
    asyncpg.DataError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.StatementTooComplexError,
)


class CallbackItem(BaseModel):
    """How one job went. `class` of an error is one of ours; another is a provider_error."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "job_id": "0199c2f0-7c1e-7b3a-9d52-5f7a3c1e8b44",
                    "token": "1.q0f3…",
                    "status": "succeeded",
                    "result": {"score": 7},
                }
            ]
        },
    )

    job_id: UUID | None = None
    token: str | None = None
    attempt: int | None = None
    status: str
    result: Any = None
    units: int | None = None
    usage: dict[str, Any] | None = None
    stage: str | None = None
    progress: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class CallbackResult(Answer):
    job_id: str | None
    outcome: str


class CallbackResults(Answer):
    """What became of each, in order: accepted, duplicate, stale, unknown or invalid."""

    results: list[CallbackResult]


_ITEM = {"$ref": f"#/components/schemas/{CallbackItem.__name__}"}
_ARRAY = {"type": "array", "items": _ITEM, "maxItems": MOST_ITEMS}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    """What the document says of a body that these routes read by themselves."""
    content = {"application/json": {"schema": schema}}
    return {"request_body": {"required": True, "content": content}, "models": (CallbackItem,)}


@routes.add(
    "POST",
    "/v1/callbacks/{job_id}",
    summary="Say how a job went",
    answer=CallbackResults,
    **_body({"anyOf": [_ITEM, {**_ARRAY, "maxItems": 1}]}),
    about="What became of each item",
    refuses=(401,),
)
async def call_back(job_id: UUID, request: Request, backend: Backend) -> Response | dict[str, Any]:
    """One result, or an array with one, for the job in the path.

    Authenticated by `Authorization: Bearer` with the token of the start, by `token` in the body, by
    a Standard Webhooks signature over a body with `job_id` and `attempt`, or by the kind's shared
    secret as bearer with `attempt`. Of a body larger than 64 KB the headers or the first 64 KB have
    to hold the token or the secret: a signature proves nothing before all of the body has come.
    """
    credential = bearer(request) or ""
    caller = Caller(backend, job_id)
    await caller.read_bearer(request, credential)
    content = await read_body(
        request,
        SINGLE_BYTES,
        known=caller.known,
        proves=lambda part: holds_token(backend.roots, part, job_id),
    )
    body = bytes(content)
    await caller.read_signature(request, body)
    item = only_item(caller, body)
    if item.odd is None and item.job_id not in (None, job_id):
        raise Invalid(
            "the body is about another job than the address",
            code="invalid_callback",
            field="job_id",
        )
    items = caller.items(item, credential)
    if items is None:
        return {"results": [_result(job_id, "invalid", item.odd or caller.why)]}
    if caller.signature is None:
        outcome = await _resolve_first(backend, items)
    else:
        outcome = await _resolve_signed(backend, items, caller.signature)
    if outcome == "locked":
        return _refuse_locked()
    await _notify(backend, [items[0]], [outcome])
    return {"results": [_result(job_id, outcome)]}


@routes.add(
    "POST",
    "/v1/callbacks",
    summary="Say how several jobs went",
    answer=CallbackResults,
    **_body(_ARRAY),
    about="What became of each item",
    refuses=(401,),
)
async def call_back_many(request: Request, backend: Backend) -> Response | dict[str, Any]:
    """An array of results, each with the token of its start, and each for itself.

    One larger than 64 KB is read on only if those 64 KB hold `job_id` and `token` of an item.
    """
    body = await read_body(
        request,
        ARRAY_BYTES,
        proves=lambda part: holds_token(backend.roots, part),
    )
    try:
        raw = parse(body)
    except ValueError:
        raise unknown_caller() from None
    raw = [raw] if isinstance(raw, dict) else raw
    if not isinstance(raw, list) or not raw:
        raise unknown_caller()
    if len(raw) > MOST_ITEMS:
        raise Invalid(
            f"a callback may have at most {MOST_ITEMS} items", code="invalid_callback", field="body"
        )
    read = [read_item(item) for item in raw]
    attempts = [
        callback_token.attempt_of(backend.roots, item.job_id, item.token)
        if item.job_id is not None and item.token is not None
        else None
        for item in read
    ]
    if not any(attempts):
        raise unknown_caller()
    items = {
        index: item.item(item.job_id, attempt, item.token)
        for index, (item, attempt) in enumerate(zip(read, attempts, strict=True))
        if attempt is not None and item.odd is None and item.job_id and item.token
    }
    outcomes = dict(zip(items, await _resolve_many(backend, list(items.values())), strict=True))
    await _notify(backend, list(items.values()), list(outcomes.values()))
    if "locked" in outcomes.values():
        return _refuse_locked()
    return {
        "results": [
            _result(item.job_id or item.shown, outcomes.get(index, "invalid"), item.odd)
            for index, item in enumerate(read)
        ]
    }


class _Undone(Exception):  # noqa: N818
    """Rolls back what took no effect, so that it may come again."""


async def _resolve_first(backend: Backend, items: Sequence[Item]) -> str:
    """The same start under several tokens: the one that fits."""
    outcome = "invalid"
    for item in items:
        [outcome] = await _resolve_many(backend, [item])
        if outcome != "invalid":
            break
    return outcome


async def _resolve_signed(backend: Backend, items: Sequence[Item], signed: bytes) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            outcome = await _remember_and_resolve(backend, items, signed)
        except _UNFIT:
            return "invalid"
        if outcome != "locked" or time.monotonic() >= deadline:
            return outcome
        await asyncio.sleep(_RETRY_SECONDS)


async def _remember_and_resolve(backend: Backend, items: Sequence[Item], signed: bytes) -> str:
    """Signature and effect in one transaction: what was not done is not remembered as done."""
    callbacks = backend.engine.callbacks
    outcome = "invalid"
    with suppress(_Undone):
        async with backend.engine.transaction() as conn:
            if not await callbacks.remember(signed, conn=conn):
                raise Unauthorized(
                    "this message was taken before",
                    code="callback_replayed",
                    hint="Sign it anew: a repetition has a timestamp of its own.",
                )
            for item in items:
                [(_, outcome)] = await callbacks.resolve([item], wait=_WAIT, conn=conn)
                if outcome != "invalid":
                    break
            if outcome in ("locked", "invalid"):
                raise _Undone
    return outcome


async def _resolve_many(backend: Backend, items: Sequence[Item]) -> list[str]:
    """Their outcomes in order; jobs whose account is locked are tried for a while."""
    outcomes = ["locked"] * len(items)
    left = list(range(len(items)))
    deadline = time.monotonic() + PATIENCE_SECONDS
    wait: timedelta | None = None
    while left:
        resolved = await _resolve(backend, [items[index] for index in left], wait)
        for index, outcome in zip(left, resolved, strict=True):
            outcomes[index] = outcome
        left = [index for index in left if outcomes[index] == "locked"]
        if not left or time.monotonic() >= deadline:
            break
        wait = _WAIT
        await asyncio.sleep(_RETRY_SECONDS)
    return outcomes


async def _resolve(backend: Backend, items: Sequence[Item], wait: timedelta | None) -> list[str]:
    try:
        resolved = await backend.engine.callbacks.resolve(items, wait=wait)
    except _UNFIT:
        if len(items) == 1:
            return ["invalid"]
        return [(await _resolve(backend, [item], wait))[0] for item in items]
    # SQL answers by queue; those of one job in their order.
    outcomes: defaultdict[UUID, deque[str]] = defaultdict(deque)
    for job_id, outcome in resolved:
        outcomes[job_id].append(outcome)
    return [outcomes[item.job_id].popleft() for item in items]


async def _notify(backend: Backend, items: Sequence[Item], outcomes: Sequence[str]) -> None:
    """Wake workers and drives of queues in which a slot is free now; have on_finish called."""
    accepted = [
        item for item, outcome in zip(items, outcomes, strict=True) if outcome == "accepted"
    ]
    if not accepted:
        return
    settled = [item.job_id for item in accepted if item.outcome != "progress"]
    kinds = (await backend.engine.callbacks.kinds(settled)).values() if settled else ()
    for queue in {kind.queue for kind in kinds}:
        backend.wake(queue)
    backend.drives.submitted({kind.kind for kind in kinds})
    if settled:
        backend.notify_app()


def _result(job: UUID | str | None, outcome: str, why: str | None = None) -> dict[str, Any]:
    result = {"job_id": None if job is None else str(job), "outcome": outcome}
    return {**result, "message": why} if why and outcome == "invalid" else result


def _refuse_locked() -> Response:
    return problem(
        503,
        "busy",
        "a transaction of the app holds the account of a job; what could be done was done",
        hint="Send it again: what was taken before is told as duplicate.",
        headers={"Retry-After": "1"},
    )
