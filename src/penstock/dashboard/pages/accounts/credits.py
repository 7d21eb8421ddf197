"""Credits by hand: given, taken, given back; each once for its reference."""

import re
from typing import Any
from urllib.parse import quote

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from penstock.base.wording import count
from penstock.dashboard.components.options import beside
from penstock.dashboard.frame import action, backend, go, render
from penstock.dashboard.pages.accounts.account import (
    Said,
    account_at,
    account_of,
    brief,
    show_account,
)
from penstock.engine.encoding.encode import CREDITS_MAX
from penstock.errors import Refused

_FIELDS = ("amount", "reason", "ref")


@action("/account/grant")
async def grant(request: Request, form: FormData) -> Response:
    name = account_of(form)
    # A grant would make it; from this page, that is a name that somebody has changed.
    await backend(request).engine.accounts.show(name)
    typed = _typed(form)
    problems = _problems(typed)
    if problems:
        return await show_account(request, name, Said("grant", typed, problems))
    amount = _amount(typed["amount"])
    try:
        done = await backend(request).engine.accounts.grant(
            name, amount, reason=typed["reason"] or None, ref=typed["ref"]
        )
    except Refused as error:
        return await _refused(request, name, "grant", typed, error)
    return _told(request, name, done, f"Granted {count(amount, 'credit')} to {brief(name)}")


@action("/account/deduct")
async def deduct(request: Request, form: FormData) -> Response:
    """Asks once more: it takes something away."""
    name = account_of(form)
    accounts = backend(request).engine.accounts
    balance = (await accounts.show(name))["balance"]
    typed = _typed(form)
    problems = _problems(typed)
    if problems:
        return await show_account(request, name, Said("deduct", typed, problems))
    amount = _amount(typed["amount"])
    if form.get("confirm") != "yes":
        if amount > balance:
            said = f"The account has {count(balance, 'credit')}; no more can be taken."
            return await show_account(request, name, Said("deduct", typed, {"amount": said}))
        return _ask_deduct(request, name, typed, balance)
    try:
        done = await accounts.deduct(name, amount, ref=typed["ref"], reason=typed["reason"] or None)
    except Refused as error:
        return await _refused(request, name, "deduct", typed, error)
    return _told(request, name, done, f"Deducted {count(amount, 'credit')} from {brief(name)}")


@action("/account/refund")
async def refund(request: Request, form: FormData) -> Response:
    name = account_of(form)
    typed = _typed(form)
    problems = _problems(typed | {"amount": "1"})
    if problems:
        return await show_account(request, name, Said("refund", typed, problems))
    try:
        done = await backend(request).engine.accounts.refund(
            name, ref=typed["ref"], reason=typed["reason"] or None
        )
    except Refused as error:
        return await _refused(request, name, "refund", typed, error)
    back = count(abs(done["amount"]), "credit")
    return _told(request, name, done, f"Gave {back} back to {brief(name)}")


def _ask_deduct(request: Request, name: str, typed: dict[str, str], balance: int) -> Response:
    amount = _amount(typed["amount"])
    return render(
        request,
        "parts/confirm.html",
        section="Accounts",
        heading=f"Take {count(amount, 'credit')} from {name}?",
        says=[
            f"The balance is {balance:,} now and {balance - amount:,} then.",
            f"It is booked under the reference {typed['ref']}; with that it can be given back.",
        ],
        target="account/deduct",
        fields={"account": quote(name, safe=""), **{key: typed[key] for key in _FIELDS}},
        button=f"Take {count(amount, 'credit')}",
        back=account_at(name),
    )


async def _refused(
    request: Request, name: str, which: str, typed: dict[str, str], error: Refused
) -> Response:
    """Beside its field; what is about the whole account, beside the amount."""
    if error.code == "unknown_account":
        raise error
    field = error.field if error.field in _FIELDS else "amount" if which != "refund" else "ref"
    return await show_account(request, name, Said(which, typed, {field: beside(error)}))


def _told(request: Request, name: str, done: dict[str, Any], what: str) -> Response:
    if done["replayed"]:
        what = f"This was done before under the reference {brief(done['ref'])}: nothing moved"
    return go(request, account_at(name), notice=f"{what}; the balance is {done['balance']:,}.")


def _typed(form: FormData) -> dict[str, str]:
    return {field: str(form.get(field, "")).strip() for field in _FIELDS}


def _problems(typed: dict[str, str]) -> dict[str, str]:
    found = {}
    if not 1 <= _amount(typed["amount"]) <= CREDITS_MAX:
        found["amount"] = f"The amount must be a whole number from 1 to {CREDITS_MAX:,}."
    if not 1 <= len(typed["ref"]) <= 200:  # noqa: PLR2004  # as SQL has it
        found["ref"] = "The reference must have 1 to 200 characters."
    if len(typed["reason"]) > 500:  # noqa: PLR2004  # as SQL has it
        found["reason"] = "The reason must have at most 500 characters."
    return found


def _amount(text: str) -> int:
    """Nothing for what is no number."""
    plain = text.replace(",", "").replace(" ", "")
    return int(plain) if re.fullmatch(r"\+?[0-9]{1,15}", plain) else 0
