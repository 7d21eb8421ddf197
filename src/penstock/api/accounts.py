"""Accounts over HTTP: who may use how much, what they have left, and every move of it."""

import json
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from penstock.api import cursors, problems
from penstock.api.access import refuse_unless_allowed
from penstock.api.answers import Answer
from penstock.api.auth import Principal, allowed
from penstock.api.backend import Backend, backend
from penstock.api.body import Body, Strict, documented
from penstock.api.headers import JSON
from penstock.engine.encode import CREDITS_MAX
from penstock.errors import NotAllowed, NotFound

router = APIRouter(prefix="/v1/accounts", tags=["accounts"])

Reader = Annotated[Principal, Depends(allowed("admin", "app", "account", "token"))]
Backer = Annotated[Principal, Depends(allowed("admin", "app"))]
Operator = Annotated[Principal, Depends(allowed("admin"))]
Behind = Annotated[Backend, Depends(backend)]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many at most.")]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.")]

_USUAL = (401, 403, 404, 413, 422, 429, 503)


class CreateAccount(Strict):
    """An account that is not there yet; without a plan it gets the default one."""

    id: Annotated[str, Field(min_length=1, max_length=200, examples=["u1"])]
    plan: str | None = None


class EditAccount(Strict):
    plan: str


class GrantCredits(Strict):
    """Credits to be given; once for each `ref`."""

    amount: Annotated[int, Field(ge=1, le=CREDITS_MAX, examples=[100])]
    reason: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    ref: Annotated[str, Field(min_length=1, max_length=200, examples=["payment-17"])] | None = None


class DeductCredits(Strict):
    """Credits to be taken for something that is no job; once for each `ref`."""

    amount: Annotated[int, Field(ge=1, le=CREDITS_MAX, examples=[5])]
    reason: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    ref: Annotated[str, Field(min_length=1, max_length=200, examples=["export-3"])]


class RefundCredits(Strict):
    """What was deducted under this `ref`, given back once."""

    ref: Annotated[str, Field(min_length=1, max_length=200, examples=["export-3"])]
    reason: Annotated[str, Field(min_length=1, max_length=500)] | None = None


class Account(Answer):
    id: str
    plan: str | None
    balance: int
    running: int
    queued: int
    submitted_last_hour: int
    per_hour: int | None
    concurrency: int | None
    created_at: datetime


class AccountPage(Answer):
    items: list[Account]
    next_cursor: str | None


class Moved(Account):
    """The account after a move of credits, and the move: `replayed` says it was made before."""

    kind: str
    amount: int
    ref: str | None
    reason: str | None
    replayed: bool


class Entry(Answer):
    """A line of the books. Amounts are signed; their sum is the balance."""

    id: int
    at: datetime
    kind: str
    amount: int
    job: UUID | None
    ref: str | None
    reason: str | None
    balance_after: int


class Ledger(Answer):
    items: list[Entry]
    next_cursor: str | None


class Kept(Answer):
    """The books: amounts under the pseudonym, with the words that the operator wrote there."""

    ledger_lines: int
    with_words: int


class Receipt(Answer):
    """What was removed; in the books the account is a number from now on."""

    pseudonym: str
    jobs: int
    uploads: int
    keys: int
    webhooks: int
    at: datetime
    kept: Kept


@router.post(
    "",
    status_code=201,
    summary="Make an account",
    response_model=Account,
    openapi_extra=documented(CreateAccount),
    responses=problems.documented(*_USUAL, 409),
)
async def create(
    _: Backer,
    behind: Behind,
    said: Annotated[CreateAccount, Depends(Body(CreateAccount, code="invalid_account"))],
) -> Response:
    await behind.engine.accounts.create(said.id, plan=said.plan)
    return _json(await behind.engine.accounts.show(said.id), status=201)


@router.get(
    "",
    summary="List accounts by name",
    response_model=AccountPage,
    responses=problems.documented(401, 403, 422, 429, 503),
)
async def list_accounts(
    _: Backer, behind: Behind, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    found = await behind.engine.accounts.list(limit=limit, after=cursors.read_text(cursor))
    after = found[-1]["id"] if len(found) == limit else None
    return _page(found, cursors.write_text(after))


@router.get(
    "/{account}",
    summary="Show an account",
    response_model=Account,
    responses=problems.documented(401, 403, 404, 422, 429, 503),
)
async def read(account: str, principal: Reader, behind: Behind) -> Response:
    _refuse_foreign(principal, account)
    return _json(await behind.engine.accounts.show(account))


@router.patch(
    "/{account}",
    summary="Change an account's plan",
    response_model=Account,
    openapi_extra=documented(EditAccount),
    responses=problems.documented(*_USUAL, 409),
)
async def edit(
    account: str,
    _: Backer,
    behind: Behind,
    said: Annotated[EditAccount, Depends(Body(EditAccount))],
) -> Response:
    await behind.patient.accounts.set_plan(account, said.plan)
    return _json(await behind.engine.accounts.show(account))


@router.post(
    "/{account}/credits",
    summary="Give credits",
    response_model=Moved,
    openapi_extra=documented(GrantCredits),
    responses=problems.documented(*_USUAL, 409),
)
async def grant(
    account: str,
    _: Backer,
    behind: Behind,
    said: Annotated[GrantCredits, Depends(Body(GrantCredits))],
) -> Response:
    moved = await behind.engine.accounts.grant(
        account, said.amount, reason=said.reason, ref=said.ref
    )
    return await _moved(behind, account, moved)


@router.post(
    "/{account}/deduct",
    summary="Take credits",
    response_model=Moved,
    openapi_extra=documented(DeductCredits),
    responses=problems.documented(*_USUAL, 402, 409),
)
async def deduct(
    account: str,
    _: Backer,
    behind: Behind,
    said: Annotated[DeductCredits, Depends(Body(DeductCredits))],
) -> Response:
    moved = await behind.engine.accounts.deduct(
        account, said.amount, ref=said.ref, reason=said.reason
    )
    return await _moved(behind, account, moved)


@router.post(
    "/{account}/refund",
    summary="Give back what was deducted",
    response_model=Moved,
    openapi_extra=documented(RefundCredits),
    responses=problems.documented(*_USUAL, 409),
)
async def refund(
    account: str,
    _: Backer,
    behind: Behind,
    said: Annotated[RefundCredits, Depends(Body(RefundCredits))],
) -> Response:
    moved = await behind.engine.accounts.refund(account, ref=said.ref, reason=said.reason)
    return await _moved(behind, account, moved)


@router.get(
    "/{account}/ledger",
    summary="Every move of an account's credits, newest first",
    response_model=Ledger,
    responses=problems.documented(401, 403, 404, 422, 429, 503),
)
async def ledger(
    account: str, principal: Reader, behind: Behind, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    _refuse_foreign(principal, account)
    before = cursors.read_number(cursor)
    found = await behind.engine.accounts.ledger(account, limit=limit, before=before)
    after = str(found[-1]["id"]) if len(found) == limit else None
    return _page(found, cursors.write_text(after))


@router.post(
    "/{account}/erase",
    summary="Remove an account's jobs, uploads and name",
    description="What waits is cancelled and refunded, what runs is asked to stop; until that has "
    "ended the answer is 409 `account_busy`: repeat the call. Of the account only the books are "
    "kept, under a number. There is no way back.",
    response_model=Receipt,
    responses=problems.documented(401, 403, 404, 409, 422, 429, 503),
)
async def erase(account: str, _: Operator, behind: Behind) -> Response:
    try:
        return _json(await behind.patient.erasure.erase(account))
    finally:  # its keys end first, also where some of its jobs still run
        behind.auth.forget_account(account)


def _refuse_foreign(principal: Principal, account: str) -> None:
    """Another's account is as unknown as one that does not exist, in the same words."""
    refuse_unless_allowed(principal, "read")
    if principal.job is not None or principal.topic is not None:
        raise NotAllowed("a token for a job or topic does not show accounts", code="not_allowed")
    if principal.account is not None and principal.account != account:
        raise NotFound(
            f"there is no account {account}",
            code="unknown_account",
            field="account",
            account=account,
        )


async def _moved(behind: Backend, account: str, moved: dict[str, Any]) -> Response:
    told = {key: value for key, value in moved.items() if key not in ("account", "balance")}
    # The balance of this moment, in which others may have moved it too.
    return _json({**await behind.engine.accounts.show(account), **told})


def _page(items: list[dict[str, Any]], after: str | None) -> Response:
    return _json({"items": items, "next_cursor": after})


def _json(found: dict[str, Any], *, status: int = 200) -> Response:
    return Response(json.dumps(found), status_code=status, media_type=JSON)
