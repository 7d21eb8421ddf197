"""Accounts over HTTP: plans and limits, balances, and the ledger of credits."""

from collections.abc import Awaitable
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from penstock.engine.encoding.encode import CREDITS_MAX
from penstock.http.auth.caller import Operator, Principal, Reader, Service, unknown_account
from penstock.http.backend import Backend
from penstock.http.routing import Body, Routes, Strict
from penstock.http.schemas import cursors
from penstock.http.schemas.answers import Answer, page_of
from penstock.http.schemas.cursors import Cursor, Limit

routes = Routes("accounts")

Row = dict[str, Any]


class CreateAccount(Strict):
    """A new account; without a plan it gets the default one."""

    id: Annotated[str, Field(min_length=1, max_length=200, examples=["u1"])]
    plan: str | None = None


class EditAccount(Strict):
    plan: str


class GrantCredits(Strict):
    """Credits to add, once for each `ref`."""

    amount: Annotated[int, Field(ge=1, le=CREDITS_MAX, examples=[100])]
    reason: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    ref: Annotated[str, Field(min_length=1, max_length=200, examples=["payment-17"])] | None = None


class DeductCredits(Strict):
    """Credits to take for something that is not a job, once for each `ref`."""

    amount: Annotated[int, Field(ge=1, le=CREDITS_MAX, examples=[5])]
    reason: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    ref: Annotated[str, Field(min_length=1, max_length=200, examples=["export-3"])]


class RefundCredits(Strict):
    """Refund the deduction with this `ref`, once."""

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


AccountPage = page_of("AccountPage", Account)


class Moved(Account):
    """A change of credits and the account after it; `replayed`: the change was made before."""

    kind: str
    amount: int
    ref: str | None
    reason: str | None
    replayed: bool


class Entry(Answer):
    """A line of the ledger. Amounts are signed; their sum is the balance."""

    id: int
    at: datetime
    kind: str
    amount: int
    job: UUID | None
    ref: str | None
    reason: str | None
    balance_after: int


Ledger = page_of("Ledger", Entry)


class Kept(Answer):
    """What the ledger keeps: amounts under the pseudonym, and the operator's refs and reasons."""

    ledger_lines: int
    with_words: int


class Receipt(Answer):
    """What was removed; from now on the ledger calls the account by its pseudonym."""

    pseudonym: str
    jobs: int
    uploads: int
    keys: int
    webhooks: int
    at: datetime
    kept: Kept


@routes.add(
    "POST",
    "/v1/accounts",
    status=201,
    summary="Create an account",
    answer=Account,
    refuses=(404, 409),
)
async def create(
    _: Service,
    backend: Backend,
    form: Annotated[CreateAccount, Body(code="invalid_account")],
) -> Row:
    await backend.engine.accounts.create(form.id, plan=form.plan)
    return await backend.engine.accounts.show(form.id)


@routes.add("GET", "/v1/accounts", summary="List accounts by name", answer=AccountPage)
async def list_accounts(
    _: Service, backend: Backend, limit: Limit = 100, cursor: Cursor = None
) -> Row:
    accounts = await backend.engine.accounts.list(limit=limit, after=cursors.read_text(cursor))
    return cursors.page(accounts, limit)


@routes.add("GET", "/v1/accounts/{account}", summary="Read an account", answer=Account)
async def read(account: str, principal: Reader, backend: Backend) -> Row:
    _refuse_foreign(principal, account)
    return await backend.engine.accounts.show(account)


@routes.add(
    "PATCH",
    "/v1/accounts/{account}",
    summary="Change an account's plan",
    answer=Account,
    refuses=(409,),
)
async def edit(
    account: str,
    _: Service,
    backend: Backend,
    form: Annotated[EditAccount, Body()],
) -> Row:
    await backend.patient.accounts.set_plan(account, form.plan)
    return await backend.engine.accounts.show(account)


@routes.add(
    "POST", "/v1/accounts/{account}/credits", summary="Grant credits", answer=Moved, refuses=(409,)
)
async def grant(
    account: str,
    _: Service,
    backend: Backend,
    form: Annotated[GrantCredits, Body()],
) -> Row:
    move = backend.engine.accounts.grant(account, **dict(form))
    return await _moved(backend, account, move)


@routes.add(
    "POST",
    "/v1/accounts/{account}/deduct",
    summary="Deduct credits",
    answer=Moved,
    refuses=(402, 409),
)
async def deduct(
    account: str,
    _: Service,
    backend: Backend,
    form: Annotated[DeductCredits, Body()],
) -> Row:
    move = backend.engine.accounts.deduct(account, **dict(form))
    return await _moved(backend, account, move)


@routes.add(
    "POST",
    "/v1/accounts/{account}/refund",
    summary="Refund a deduction",
    answer=Moved,
    refuses=(409,),
)
async def refund(
    account: str,
    _: Service,
    backend: Backend,
    form: Annotated[RefundCredits, Body()],
) -> Row:
    move = backend.engine.accounts.refund(account, **dict(form))
    return await _moved(backend, account, move)


@routes.add(
    "GET",
    "/v1/accounts/{account}/ledger",
    summary="List all changes of an account's credits, newest first",
    answer=Ledger,
)
async def ledger(
    account: str, principal: Reader, backend: Backend, limit: Limit = 100, cursor: Cursor = None
) -> Row:
    _refuse_foreign(principal, account)
    before = cursors.read_number(cursor)
    entries = await backend.engine.accounts.ledger(account, limit=limit, before=before)
    return cursors.page(entries, limit)


@routes.add(
    "POST",
    "/v1/accounts/{account}/erase",
    summary="Remove an account's jobs, uploads and name",
    answer=Receipt,
    refuses=(409,),
)
async def erase(account: str, _: Operator, backend: Backend) -> Row:
    """Waiting jobs are cancelled and refunded, and running jobs are asked to stop.

    Until they have finished the answer is 409 `account_busy`: repeat the call. Only the account's
    ledger is kept, under a pseudonym. This cannot be undone.
    """
    try:
        return await backend.patient.erasure.erase(account)
    finally:  # its keys are revoked first, even if some of its jobs still run
        backend.auth.forget_account(account)


def _refuse_foreign(principal: Principal, account: str) -> None:
    """Refuse another account with the same answer as an account that does not exist."""
    principal.refuse_narrow("a token for a job or topic does not show accounts")
    if principal.account not in (None, account):
        raise unknown_account(account)


async def _moved(backend: Backend, account: str, move: Awaitable[dict[str, Any]]) -> Row:
    # Without the balance after the change: the current one is shown, which others may have changed.
    moved = {name: value for name, value in (await move).items() if name not in _SHOWN}
    return {**await backend.engine.accounts.show(account), **moved}


_SHOWN = ("account", "balance")
