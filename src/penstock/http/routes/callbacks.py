"""Callbacks: outside functions report how their dispatched jobs went.

The caller authenticates with the token of the attempt, with a signature over the raw body (Standard
Webhooks), or with the secret that the kind shares with its function; in an array each item has its
token. Items are independent of each other, and the fence in the database decides whether an item
takes effect (callbacks.sql).
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

# Several times the limit of a result, as the JSON may have much white space; and many results.
SINGLE_BYTES = 4 * 1024 * 1024
ARRAY_BYTES = 16 * 1024 * 1024
MOST_ITEMS = 1_000
# How long to wait for an account that a transaction of the app has locked.
PATIENCE_SECONDS = 2.0
_WAIT = timedelta(seconds=0.5)
_RETRY_SECONDS = 0.05
# Errors for valid JSON that the database cannot store.
_UNFIT = (
    asyncpg.DataError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.StatementTooComplexError,
)


class CallbackItem(BaseModel):
    """The result of one job. An unknown `class` of an error counts as `provider_error`."""

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
    """The outcome of each item, in order: accepted, duplicate, stale, unknown or invalid."""

    results: list[CallbackResult]


_ITEM = {"$ref": f"#/components/schemas/{CallbackItem.__name__}"}
_ARRAY = {"type": "array", "items": _ITEM, "maxItems": MOST_ITEMS}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    """Describe a body that these routes read themselves, for the OpenAPI document."""
    content = {"application/json": {"schema": schema}}
    return {"request_body": {"required": True, "content": content}, "models": (CallbackItem,)}


@routes.add(
    "POST",
    "/v1/callbacks/{job_id}",
    summary="Report the result of a job",
    answer=CallbackResults,
    **_body({"anyOf": [_ITEM, {**_ARRAY, "maxItems": 1}]}),
    about="The outcome of each item",
    refuses=(401,),
)
async def call_back(job_id: UUID, request: Request, backend: Backend) -> Response | dict[str, Any]:
    """One result, or an array with one, for the job in the path.

    Authenticated by `Authorization: Bearer` with the token of the attempt, by `token` in the body,
    by a Standard Webhooks signature over a body with `job_id` and `attempt`, or by the kind's
    shared secret as bearer with `attempt`. If the body is larger than 64 KB, its headers or its
    first 64 KB must contain the token or the secret: a signature can only be checked after the
    whole body has arrived.
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
            "the body names another job than the address",
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
    summary="Report the results of several jobs",
    answer=CallbackResults,
    **_body(_ARRAY),
    about="The outcome of each item",
    refuses=(401,),
)
async def call_back_many(request: Request, backend: Backend) -> Response | dict[str, Any]:
    """An array of results, each with the token of its attempt. They are independent of each other.

    If the body is larger than 64 KB, its first 64 KB must contain `job_id` and `token` of an item.
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
    """Rolls back a callback without effect, so that it may be sent again."""


async def _resolve_first(backend: Backend, items: Sequence[Item]) -> str:
    """Try the same attempt with several tokens; return the outcome of the one that matches."""
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
    """Record the signature and resolve in one transaction, so that neither is kept alone."""
    callbacks = backend.engine.callbacks
    outcome = "invalid"
    with suppress(_Undone):
        async with backend.engine.transaction() as conn:
            if not await callbacks.remember(signed, conn=conn):
                raise Unauthorized(
                    "this message was accepted before",
                    code="callback_replayed",
                    hint="Sign it again: each repetition needs a new timestamp.",
                )
            for item in items:
                [(_, outcome)] = await callbacks.resolve([item], wait=_WAIT, conn=conn)
                if outcome != "invalid":
                    break
            if outcome in ("locked", "invalid"):
                raise _Undone
    return outcome


async def _resolve_many(backend: Backend, items: Sequence[Item]) -> list[str]:
    """Return the outcomes in order; retry jobs whose account is locked for a while."""
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
    # SQL returns the outcomes by queue; those of one job in their order.
    outcomes: defaultdict[UUID, deque[str]] = defaultdict(deque)
    for job_id, outcome in resolved:
        outcomes[job_id].append(outcome)
    return [outcomes[item.job_id].popleft() for item in items]


async def _notify(backend: Backend, items: Sequence[Item], outcomes: Sequence[str]) -> None:
    """Wake workers and drives of queues with newly free slots; run due on_finish callbacks."""
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
        "a transaction of the app has locked the account of a job; the other items were processed",
        hint="Send it again: items that were accepted before are answered with duplicate.",
        headers={"Retry-After": "1"},
    )
