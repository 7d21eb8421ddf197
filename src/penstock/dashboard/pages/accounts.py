"""Pages of accounts: the list, a form for new ones, one account in detail, its erasure."""

import re
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlencode

from penstock.dashboard.components.words import refusal
from penstock.dashboard.frame import (
    FormData,
    HTTPStatus,
    Request,
    Response,
    action,
    backend,
    confirm,
    go,
    page,
    render,
)
from penstock.engine.queries.lists import JobFilter
from penstock.errors import Conflict, NotFound, Refused

PAGE_ROWS = 50
NAME_LONGEST = 200
LEDGER = 15
JOBS = 10
KEYS = 100
# A cookie holds the notice, and a name may have 200 characters.
_BRIEF = 60
MOVES = {
    "grant": "Granted",
    "deduct": "Deducted",
    "reserve": "Reserved for a job",
    "refund": "Refunded",
}
MISTYPED = "That is not the account's name. Nothing was erased."


@page("/accounts")
async def show_all(request: Request) -> Response:
    return await _list(request)


@action("/accounts")
async def create(request: Request, form: FormData) -> Response:
    """Create an account before its first job or grant, which would create it otherwise."""
    name = str(form.get("account", "")).strip()
    plan = str(form.get("plan", "")) or None
    accounts = backend(request).engine.accounts
    if not 1 <= len(name) <= NAME_LONGEST:
        problem = f"The name must have 1 to {NAME_LONGEST} characters."
        return await _list(request, typed=name, plan=plan, problem=problem)
    try:
        await accounts.create(name, plan=plan)
    except Refused as error:
        if error.field != "account":
            raise
        return await _list(request, typed=name, plan=plan, problem=refusal(error))
    made = await accounts.show(name)
    has = f"plan {made['plan']}" if made["plan"] else "no plan"
    notice = f"Account {brief(name)} was created with {has} and no credits."
    return go(request, account_at(name), notice=notice)


async def _list(
    request: Request, *, typed: str = "", plan: str | None = None, problem: str | None = None
) -> Response:
    engine = backend(request).engine
    wanted = request.query_params.get("q", "").strip()
    after = request.query_params.get("after") or None
    if wanted:
        rows = await engine.lists.accounts(wanted, limit=PAGE_ROWS + 1, after=after)
    else:
        rows = await engine.accounts.list(limit=PAGE_ROWS + 1, after=after)
    first = f"accounts?{urlencode({'q': wanted})}" if wanted else "accounts"
    last = {"after": rows[PAGE_ROWS - 1]["id"]} if len(rows) > PAGE_ROWS else {}
    return render(
        request,
        "accounts/accounts.html",
        status=HTTPStatus.OK if problem is None else HTTPStatus.UNPROCESSABLE_ENTITY,
        accounts=rows[:PAGE_ROWS],
        account_at=account_at,
        plans=await engine.accounts.plans(),
        wanted=wanted,
        first=first if after else None,
        next=f"accounts?{urlencode(({'q': wanted} if wanted else {}) | last)}" if last else None,
        after=after,
        typed=typed,
        chosen=plan,
        problem=problem,
    )


@dataclass(frozen=True, slots=True)
class Faults:
    """The input of one of the page's forms, and what is wrong with it, by field."""

    form: str
    typed: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


@page("/accounts/{name:path}")
async def show(request: Request, name: str) -> Response:
    return await show_account(request, name) if name else go(request, "accounts")


@page("/account")
async def show_named(request: Request) -> Response:
    """Show an account whose name cannot be in a path: `.`, `..`, or one of several lines."""
    name = request.query_params.get("name", "")
    return await show_account(request, name) if name else go(request, "accounts")


async def show_account(request: Request, name: str, faults: Faults | None = None) -> Response:
    engine = backend(request).engine
    account = await engine.accounts.show(name)
    # The id at which a page of the ledger begins; anything else shows the newest page.
    begin = request.query_params.get("before", "")
    before = int(begin) if re.fullmatch("[0-9]{1,18}", begin) else None
    ledger = await engine.accounts.ledger(name, limit=LEDGER + 1, before=before)
    more = ledger[LEDGER - 1]["id"] if len(ledger) > LEDGER else None
    return render(
        request,
        "accounts/account.html",
        status=HTTPStatus.OK if faults is None else HTTPStatus.UNPROCESSABLE_ENTITY,
        account=account,
        plans=await engine.accounts.plans(),
        ledger=ledger[:LEDGER],
        moves=MOVES,
        first=account_at(name) if before is not None else None,
        next=account_at(name, before=str(more)) if more else None,
        jobs=await engine.lists.jobs(JobFilter(account=name), limit=JOBS),
        keys=await engine.keys.list(account=name, limit=KEYS),
        key_command=f"penstock key create --account {shlex.quote(name)}",
        # A form that is sent twice moves credits once.
        ref=f"dashboard-{secrets.token_hex(5)}",
        faults=faults,
    )


@action("/account/plan")
async def set_plan(request: Request, form: FormData) -> Response:
    name = account_of(form)
    plan = str(form.get("plan", ""))
    await backend(request).patient.accounts.set_plan(name, plan)
    notice = f"Account {brief(name)} now has plan {plan}. Its limits apply at once."
    return go(request, account_at(name), notice=notice)


@action("/account/revoke")
async def revoke(request: Request, form: FormData) -> Response:
    """Revoke a key. Keys are created on the command line, which shows them once."""
    name, key = account_of(form), str(form.get("key", ""))
    behind = backend(request)
    if key not in (row["id"] for row in await behind.engine.keys.list(account=name)):
        raise NotFound(f"account {brief(name)} has no key {key[:40]}", code="unknown_key")
    if form.get("confirm") != "yes":
        return confirm(
            request,
            section="Accounts",
            heading=f"Revoke key {key}?",
            effects=[
                "Within a second, calls with this key and with the tokens it issued are refused.",
                "This cannot be undone. To replace the key, create a new one.",
            ],
            target="account/revoke",
            fields={"account": str(form.get("account", "")), "key": key},
            button="Revoke key",
            back=account_at(name),
        )
    await behind.engine.keys.revoke(key)
    behind.auth.forget(key)
    return go(request, account_at(name), notice=f"Key {key} was revoked.")


@action("/account/erase")
async def erase(request: Request, form: FormData) -> Response:
    """Erase an account after its name was typed; then show the receipt."""
    name = account_of(form)
    typed, problem = str(form.get("typed", "")), None
    if form.get("confirm") != "yes":
        typed = ""
    # A one-line field drops line ends, and blanks at the end are invisible.
    elif typed.split() != name.split():
        typed, problem = "", MISTYPED
    else:
        try:
            receipt = await backend(request).patient.erasure.erase(name)
            return render(request, "accounts/erased.html", name=name, receipt=receipt)
        except Conflict as error:
            if error.code != "account_busy":
                raise
            # Waiting jobs are cancelled by now; the next try continues from here.
            typed, problem = name, f"Not finished yet: {error}"
        finally:  # its keys are revoked first, even while some of its jobs still run
            backend(request).auth.forget_account(name)
    return render(
        request,
        "accounts/erase.html",
        status=HTTPStatus.OK if problem is None else HTTPStatus.CONFLICT,
        account=await backend(request).engine.accounts.show(name),
        back=account_at(name),
        problem=problem,
        typed=typed,
    )


def account_at(name: str, **query: str) -> str:
    """Return the path of an account's page, from the dashboard's root."""
    if name in (".", "..") or "\n" in name:
        return "account?" + urlencode({"name": name, **query})
    asked = "?" + urlencode(query) if query else ""
    return f"accounts/{quote(name, safe='')}{asked}"


def account_of(form: FormData) -> str:
    """Read the account's name, which the form holds quoted: browsers change line ends."""
    return unquote(str(form.get("account", "")))


def brief(name: str) -> str:
    return name if len(name) <= _BRIEF else f"{name[:_BRIEF]}…"
