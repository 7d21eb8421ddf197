"""Pages of plans: the declared options and those in force; a form that changes them."""

from functools import partial
from typing import Any
from urllib.parse import quote

from penstock.base.wording import count
from penstock.dashboard.components import options
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
from penstock.errors import NotFound


@page("/plans")
async def show_all(request: Request) -> Response:
    plans = await backend(request).engine.accounts.plans()
    return render(request, "accounts/plans.html", plans=plans, options=options.PLAN)


@page("/plans/{name}")
async def show(request: Request, name: str) -> Response:
    return _page(request, await _read(request, name))


@action("/plans/{name}/edit")
async def edit(request: Request, form: FormData, name: str) -> Response:
    plan = await _read(request, name)
    edit = options.read(options.PLAN, plan, form)
    await edit.save(partial(backend(request).patient.accounts.edit_plan, plan["name"]))
    if edit.problems:
        return _page(request, plan, edit)
    if not edit.changed:
        return _back(request, "Nothing was changed.")
    return _back(request, f"{edit.words(options.PLAN)}, for {count(plan['accounts'], 'account')}.")


@action("/plans/{name}/reset")
async def reset(request: Request, form: FormData, name: str) -> Response:
    plan = await _read(request, name)
    if not plan["overrides"]:
        return _back(request, "Nothing to reset: the plan is as declared.")
    if form.get("confirm") != "yes":
        return confirm(
            request,
            section="Accounts",
            heading=f"Reset plan {plan['name']} to its declared options?",
            effects=[
                *options.changes_back(options.PLAN, plan, plan),
                f"The change applies at once, to {count(plan['accounts'], 'account')}.",
            ],
            target=f"{_at(request)}/reset",
            button="Reset to declared options",
            back=_at(request),
        )
    await backend(request).patient.accounts.reset_plan(plan["name"])
    return _back(request, f"Plan {plan['name']} is as declared again.")


async def _read(request: Request, name: str) -> dict[str, Any]:
    for plan in await backend(request).engine.accounts.plans():
        if plan["name"] == name:
            return plan
    raise NotFound(f"there is no plan {name}", code="unknown_plan", field="plan")


def _page(request: Request, plan: dict[str, Any], edit: options.Edit | None = None) -> Response:
    return render(
        request,
        "accounts/plan.html",
        status=HTTPStatus.OK if edit is None else HTTPStatus.UNPROCESSABLE_ENTITY,
        plan=plan,
        lines=options.lines(options.PLAN, plan, plan, edit),
        problems=edit.problems if edit else {},
    )


def _at(request: Request) -> str:
    return f"plans/{quote(request.path_params['name'], safe='')}"


def _back(request: Request, notice: str) -> Response:
    return go(request, _at(request), notice=notice)
