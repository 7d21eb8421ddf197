"""Plans: what accounts may use, as declared and as in force; changed while they use it."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from penstock.base.wording import count
from penstock.dashboard.components import options
from penstock.dashboard.frame import action, backend, go, page, render
from penstock.errors import NotFound, Refused


@page("/plans")
async def show_all(request: Request) -> Response:
    return render(
        request,
        "accounts/plans.html",
        plans=await backend(request).engine.accounts.plans(),
        options=options.PLAN,
    )


@page("/plans/{name}")
async def show(request: Request) -> Response:
    return await _page(request, await _read(request))


@action("/plans/{name}/edit")
async def edit(request: Request, form: FormData) -> Response:
    plan = await _read(request)
    changed, problems = options.read(options.PLAN, plan, form)
    if not problems and not changed:
        return _back(request, "Nothing was changed.")
    if not problems:
        try:
            await backend(request).patient.accounts.edit_plan(plan["name"], **changed)
        except Refused as error:
            if error.field not in options.typed(options.PLAN, form):
                raise
            problems[error.field] = options.beside(error)
        else:
            told = options.told(options.PLAN, changed)
            return _back(request, f"{told}, for {count(plan['accounts'], 'account')}.")
    typed = options.typed(options.PLAN, form)
    return await _page(
        request,
        plan,
        status=HTTPStatus.UNPROCESSABLE_ENTITY,
        typed=typed,
        problems=problems,
    )


@action("/plans/{name}/reset")
async def reset(request: Request, form: FormData) -> Response:
    plan = await _read(request)
    if not plan["overrides"]:
        return _back(request, "Nothing was edited: the plan is as declared.")
    if form.get("confirm") != "yes":
        return render(
            request,
            "parts/confirm.html",
            section="Accounts",
            heading=f"Go back to what is declared for plan {plan['name']}?",
            says=[
                *options.ways_back(options.PLAN, plan, plan),
                f"It counts at once, for {count(plan['accounts'], 'account')}.",
            ],
            target=f"plans/{quote(plan['name'], safe='')}/reset",
            fields={},
            button="Go back to what is declared",
            back=f"plans/{quote(plan['name'], safe='')}",
        )
    await backend(request).patient.accounts.reset_plan(plan["name"])
    return _back(request, f"Plan {plan['name']} is as declared again.")


async def _read(request: Request) -> dict[str, Any]:
    name = request.path_params["name"]
    for plan in await backend(request).engine.accounts.plans():
        if plan["name"] == name:
            return plan
    raise NotFound(f"there is no plan {name}", code="unknown_plan", field="plan")


async def _page(
    request: Request,
    plan: dict[str, Any],
    *,
    status: int = HTTPStatus.OK,
    typed: Mapping[str, str] | None = None,
    problems: Mapping[str, str] | None = None,
) -> Response:
    return render(
        request,
        "accounts/plan.html",
        status=status,
        plan=plan,
        lines=options.lines(options.PLAN, plan, plan, typed=typed, problems=problems),
        problems=problems or {},
    )


def _back(request: Request, notice: str) -> Response:
    name = request.path_params["name"]
    return go(request, f"plans/{quote(name, safe='')}", notice=notice)
