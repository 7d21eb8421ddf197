"""One account: its plan, its credits and every move of them, its jobs and keys."""

import re
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import quote, unquote, urlencode

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from penstock.dashboard.frame import action, backend, go, page, render
from penstock.engine.queries.lists import JobFilter

LEDGER = 15
JOBS = 10
KEYS = 100
# A cookie holds the notice, and a name may have 200 characters.
_BRIEF = 60

MOVES = {
    "grant": "Granted",
    "deduct": "Deducted",
    "reserve": "Reserved for a job",
    "refund": "Given back",
}


@dataclass(frozen=True, slots=True)
class Said:
    """What came back from one of the page's forms, and what is wrong with it by field."""

    form: str
    typed: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


@page("/accounts/{name:path}")
async def show(request: Request) -> Response:
    name: str = request.path_params["name"]
    return await show_account(request, name) if name else go(request, "accounts")


@page("/account")
async def show_named(request: Request) -> Response:
    """For names that cannot be in a path: `.` and `..`, and those of several lines."""
    name = request.query_params.get("name", "")
    return await show_account(request, name) if name else go(request, "accounts")


@action("/account/plan")
async def set_plan(request: Request, form: FormData) -> Response:
    name = account_of(form)
    plan = str(form.get("plan", ""))
    await backend(request).patient.accounts.set_plan(name, plan)
    notice = f"Account {brief(name)} has plan {plan} now; its limits count at once."
    return go(request, account_at(name), notice=notice)


async def show_account(request: Request, name: str, said: Said | None = None) -> Response:
    engine = backend(request).engine
    account = await engine.accounts.show(name)
    before = _number(request.query_params.get("before", ""))
    ledger = await engine.accounts.ledger(name, limit=LEDGER + 1, before=before)
    more = ledger[LEDGER - 1]["id"] if len(ledger) > LEDGER else None
    return render(
        request,
        "accounts/account.html",
        status=HTTPStatus.OK if said is None else HTTPStatus.UNPROCESSABLE_ENTITY,
        account=account,
        plans=await engine.accounts.plans(),
        ledger=ledger[:LEDGER],
        moves=MOVES,
        first=account_at(name) if before is not None else None,
        next=account_at(name, before=str(more)) if more else None,
        jobs=await engine.lists.jobs(JobFilter(account=name), limit=JOBS),
        keys=await engine.keys.list(account=name, limit=KEYS),
        key_command=f"penstock key create --account {shlex.quote(name)}",
        # Sent twice, a form moves credits once.
        ref=f"dashboard-{secrets.token_hex(5)}",
        said=said,
    )


def account_at(name: str, **query: str) -> str:
    """The address of an account's page, from the dashboard's root."""
    if name in (".", "..") or "\n" in name:
        return "account?" + urlencode({"name": name, **query})
    asked = "?" + urlencode(query) if query else ""
    return f"accounts/{quote(name, safe='')}{asked}"


def account_of(form: FormData) -> str:
    """Quoted in the form: a browser would change the line ends of a name that has some."""
    return unquote(str(form.get("account", "")))


def _number(text: str) -> int | None:
    """Where a page of the ledger begins; anything else is the newest."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def brief(name: str) -> str:
    return name if len(name) <= _BRIEF else f"{name[:_BRIEF]}…"
