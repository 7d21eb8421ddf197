"""All accounts by name, found by how their names begin; and new ones."""

from http import HTTPStatus
from urllib.parse import urlencode

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from penstock.dashboard.components.options import beside
from penstock.dashboard.frame import action, backend, go, page, render
from penstock.dashboard.pages.accounts.account import account_at, brief
from penstock.errors import Refused

PAGE = 50
NAME_LONGEST = 200


@page("/accounts")
async def show(request: Request) -> Response:
    return await _page(request)


@action("/accounts")
async def create(request: Request, form: FormData) -> Response:
    """An account that is not there yet; otherwise its first job or grant makes it."""
    name = str(form.get("account", "")).strip()
    plan = str(form.get("plan", "")) or None
    if not 1 <= len(name) <= NAME_LONGEST:
        said = f"The name must have 1 to {NAME_LONGEST} characters."
        return await _page(request, typed=name, plan=plan, said=said)
    try:
        await backend(request).engine.accounts.create(name, plan=plan)
    except Refused as error:
        if error.field != "account":
            raise
        return await _page(request, typed=name, plan=plan, said=beside(error))
    made = await backend(request).engine.accounts.show(name)
    has = f"plan {made['plan']}" if made["plan"] else "no plan"
    notice = f"Account {brief(name)} is there, with {has} and no credits."
    return go(request, account_at(name), notice=notice)


async def _page(
    request: Request, *, typed: str = "", plan: str | None = None, said: str | None = None
) -> Response:
    accounts = backend(request).engine.accounts
    wanted = request.query_params.get("q", "").strip()
    after = request.query_params.get("after") or None
    if wanted:
        lists = backend(request).engine.lists
        found = await lists.accounts(wanted, limit=PAGE + 1, after=after)
    else:
        found = await accounts.list(limit=PAGE + 1, after=after)
    more = found[PAGE - 1]["id"] if len(found) > PAGE else None
    return render(
        request,
        "accounts/accounts.html",
        status=HTTPStatus.OK if said is None else HTTPStatus.UNPROCESSABLE_ENTITY,
        accounts=found[:PAGE],
        account_at=account_at,
        plans=await accounts.plans(),
        wanted=wanted,
        first=_address(wanted, None) if after else None,
        next=_address(wanted, more) if more else None,
        after=after,
        typed=typed,
        plan=plan,
        said=said,
    )


def _address(wanted: str, after: str | None) -> str:
    asked = {name: value for name, value in (("q", wanted), ("after", after)) if value}
    return f"accounts?{urlencode(asked)}" if asked else "accounts"
