"""Grants, deductions and refunds by hand, each once per reference; a ledger as a CSV file."""

import csv
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.responses import StreamingResponse

from penstock.base.wording import count
from penstock.dashboard.components.words import refusal
from penstock.dashboard.frame import (
    FormData,
    Request,
    Response,
    action,
    backend,
    confirm,
    go,
    page,
)
from penstock.dashboard.pages.accounts import Faults, account_at, account_of, brief, show_account
from penstock.engine.accounts.accounts import books
from penstock.engine.encoding.encode import CREDITS_MAX
from penstock.errors import Refused

FIELDS = ("at", "kind", "amount", "job", "ref", "reason", "balance_after")
# Spreadsheets treat a text that begins with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_TEXTS = ("ref", "reason")
# The same limits as in SQL.
_LONGEST_REF, _LONGEST_REASON = 200, 500

Move = Callable[..., Awaitable[dict[str, Any]]]


@action("/account/grant")
async def grant(request: Request, form: FormData) -> Response:
    name, amount = account_of(form), _amount(form)
    accounts = backend(request).engine.accounts
    # Refuse unknown accounts: a grant would create one under a name that was tampered with.
    await accounts.show(name)
    move = partial(accounts.grant, name, amount)
    done = f"Granted {count(amount, 'credit')} to {brief(name)}"
    return await _move(request, form, "grant", move, lambda _: done)


@action("/account/deduct")
async def deduct(request: Request, form: FormData) -> Response:
    """Deduct credits after a confirmation."""
    name, amount = account_of(form), _amount(form)
    accounts = backend(request).engine.accounts
    balance = (await accounts.show(name))["balance"]
    typed = _typed(form)
    problems = _problems(typed, amount)
    if amount > balance and not problems and form.get("confirm") != "yes":
        problems["amount"] = f"The account has {count(balance, 'credit')}; you cannot deduct more."
    if problems:
        return await show_account(request, name, Faults("deduct", typed, problems))
    if form.get("confirm") != "yes":
        return confirm(
            request,
            section="Accounts",
            heading=f"Deduct {count(amount, 'credit')} from {name}?",
            effects=[
                f"The balance will change from {balance:,} to {balance - amount:,}.",
                f"The reference is {typed['ref']}; with it, the deduction can be refunded.",
            ],
            target="account/deduct",
            fields={"account": quote(name, safe=""), **typed},
            button=f"Deduct {count(amount, 'credit')}",
            back=account_at(name),
        )
    move = partial(accounts.deduct, name, amount)
    done = f"Deducted {count(amount, 'credit')} from {brief(name)}"
    return await _move(request, form, "deduct", move, lambda _: done)


@action("/account/refund")
async def refund(request: Request, form: FormData) -> Response:
    name = account_of(form)
    move = partial(backend(request).engine.accounts.refund, name)
    return await _move(
        request,
        form,
        "refund",
        move,
        lambda line: f"Refunded {count(abs(line['amount']), 'credit')} to {brief(name)}",
    )


async def _move(
    request: Request,
    form: FormData,
    which: str,
    move: Move,
    words: Callable[[dict[str, Any]], str],
) -> Response:
    """Move credits, once per reference; show a problem beside its field."""
    name, typed = account_of(form), _typed(form)
    problems = _problems(typed, 1 if which == "refund" else _amount(form))
    if not problems:
        try:
            line = await move(reason=typed["reason"] or None, ref=typed["ref"])
        except Refused as error:
            if error.code == "unknown_account":
                raise
            # A problem of the whole account is shown beside the amount.
            general = "ref" if which == "refund" else "amount"
            problems[error.field if error.field in typed else general] = refusal(error)
        else:
            done = words(line)
            if line["replayed"]:
                ref = brief(line["ref"])
                done = f"The reference {ref} was used before, so no credits were moved"
            notice = f"{done}; the balance is {line['balance']:,}."
            return go(request, account_at(name), notice=notice)
    return await show_account(request, name, Faults(which, typed, problems))


def _typed(form: FormData) -> dict[str, str]:
    return {name: str(form.get(name, "")).strip() for name in ("amount", "reason", "ref")}


def _problems(typed: dict[str, str], amount: int) -> dict[str, str]:
    problems = {}
    if not 1 <= amount <= CREDITS_MAX:
        problems["amount"] = f"The amount must be a whole number from 1 to {CREDITS_MAX:,}."
    if not 1 <= len(typed["ref"]) <= _LONGEST_REF:
        problems["ref"] = f"The reference must have 1 to {_LONGEST_REF} characters."
    if len(typed["reason"]) > _LONGEST_REASON:
        problems["reason"] = f"The reason must have at most {_LONGEST_REASON} characters."
    return problems


def _amount(form: FormData) -> int:
    """Read the amount; 0 if it is not a number."""
    plain = re.sub("[, ]", "", _typed(form)["amount"])
    return int(plain) if re.fullmatch(r"\+?[0-9]{1,15}", plain) else 0


@page("/ledger.csv")
async def show_ledger(request: Request) -> Response:
    name = request.query_params.get("account", "")
    accounts = backend(request).engine.accounts
    await accounts.show(name)  # refuse an unknown account before the response starts
    return StreamingResponse(
        _csv(books(accounts, name)),
        media_type="text/csv",
        headers={"Content-Disposition": 'attachment; filename="ledger.csv"'},
    )


async def _csv(pages: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[str]:
    yield ",".join(FIELDS) + "\n"
    async for lines in pages:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(
            [_cell(name, line[name]) for name in FIELDS] for line in lines
        )
        yield out.getvalue()


def _cell(name: str, value: Any) -> Any:
    is_formula = name in _TEXTS and str(value or "").startswith(_FORMULA)
    return f"'{value}" if is_formula else value
