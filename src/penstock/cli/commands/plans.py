"""`penstock plans`: show plans, and change them at run time."""

from typing import Annotated, Any

import typer

from penstock.base.suggestions import did_you_mean
from penstock.base.wording import count
from penstock.cli.output.console import CommandEngine, Json, answer, call_engine, taking
from penstock.cli.output.render import Column, listing
from penstock.engine.options.option import editable
from penstock.engine.options.plan import PLAN
from penstock.engine.queries.json_texts import listed
from penstock.errors import NotFound

app = typer.Typer(
    name="plans",
    help="Show every plan: priority, limits, weight, number of accounts.",
    invoke_without_command=True,
)

COLUMNS = (
    Column("PLAN", "name", least=10),
    Column("PRIORITY", "priority", right=True),
    Column("LIMIT", "concurrency", right=True),
    Column("PER HOUR", "per_hour", right=True),
    Column("WEIGHT", "weight", right=True, drop=2),
    Column("FIRST JOB", lambda plan: plan["first_job"] or None, right=True, drop=3),
    Column("ACCOUNTS", "accounts", right=True),
    Column("DEFAULT", lambda plan: "yes" if plan["default"] else None, drop=4),
    Column("OVERRIDDEN", lambda plan: ", ".join(plan["overrides"]), least=10, drop=1),
)

Name = Annotated[str, typer.Argument(metavar="PLAN", help="The plan's name.")]


@app.callback()
def plans(context: typer.Context, *, as_json: Json = False) -> None:
    """Show every plan: priority, limits, weight, number of accounts."""
    if context.invoked_subcommand is None:
        none = "No plans yet: an app declares them, or SQL does (penstock.declare_plan)."
        rows = call_engine(lambda engine: engine.accounts.plans())
        answer(rows, listing(COLUMNS, none), as_json=as_json)


@app.command()
@taking(editable(PLAN))
def edit(name: Name, *, as_json: Json = False, **given: int | None) -> None:
    """Change a plan at once, for all its accounts; the change survives restarts."""
    options = {option: value for option, value in given.items() if value is not None}
    if not options:
        names = ", ".join(f"--{option.replace('_', '-')}" for option in given)
        raise typer.BadParameter(f"name an option to change: {names}.", param_hint=name)

    async def change(engine: CommandEngine) -> dict[str, Any]:
        await engine.accounts.edit_plan(name, **options)
        return await _read(engine, name)

    changes = ", ".join(f"{option} {value:,}" for option, value in options.items())
    answer(
        call_engine(change),
        lambda plan: (
            f"Plan {name} now has {changes}, for {count(plan['accounts'], 'account')}."
            f" `penstock plans reset {name}` returns to the declared options."
        ),
        as_json=as_json,
    )


@app.command()
def reset(name: Name, *, as_json: Json = False) -> None:
    """Remove what was changed at run time, and let the next app that starts declare it again."""

    async def change(engine: CommandEngine) -> tuple[dict[str, Any], dict[str, Any]]:
        before = await _read(engine, name)
        await engine.accounts.reset_plan(name)
        return before, await _read(engine, name)

    before, after = call_engine(change)
    answer(after, lambda _: was_reset("Plan", before, "it"), as_json=as_json)


def was_reset(noun: str, before: dict[str, Any], declares: str) -> str:
    """Say what a reset of a plan or a queue changed, and who may declare it now."""
    named = f"{noun} {before['name']}"
    overrides = ", ".join(before["overrides"])
    by = f" (so far {before['declared_by']} did)" if before["declared_by"] else ""
    return (
        f"{named} is as declared again; removed {overrides}."
        if overrides
        else f"{named} had no overrides: its limits are as declared."
    ) + f"\nThe next app that starts may declare {declares} again{by}."


async def _read(engine: CommandEngine, name: str) -> dict[str, Any]:
    plans = {plan["name"]: plan for plan in await engine.accounts.plans()}
    if name in plans:
        return plans[name]
    known = list(plans)
    raise NotFound(
        f"there is no plan {name}; {listed(known)}.{did_you_mean(name, known)}",
        code="unknown_plan",
        field="plan",
    )
