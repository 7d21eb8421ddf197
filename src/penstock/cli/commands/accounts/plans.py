"""`penstock plans`: what accounts may use, and how to change that while they use it."""

from typing import Annotated, Any

import typer

from penstock.base.suggestions import did_you_mean
from penstock.base.wording import count
from penstock.cli.output.console import Calls, Json, print_json, with_calls
from penstock.cli.output.options import taking
from penstock.cli.output.render import Column, print_table
from penstock.engine.options.option import editable
from penstock.engine.options.plan import PLAN
from penstock.engine.queries.json_texts import listed
from penstock.errors import NotFound

app = typer.Typer(
    help="Show every plan: priority, limits, weight, who has it.", invoke_without_command=True
)

COLUMNS = (
    Column("PLAN", least=10),
    Column("PRIORITY", right=True),
    Column("LIMIT", right=True),
    Column("PER HOUR", right=True),
    Column("WEIGHT", right=True, drop=2),
    Column("FIRST JOB", right=True, drop=3),
    Column("ACCOUNTS", right=True),
    Column("DEFAULT", drop=4),
    Column("OVERRIDDEN", least=10, drop=1),
)

Name = Annotated[str, typer.Argument(metavar="PLAN", help="The plan's name.")]


@app.callback()
def plans(context: typer.Context, *, as_json: Json = False) -> None:
    """Show every plan: priority, limits, weight, who has it."""
    if context.invoked_subcommand is not None:
        return
    found = with_calls(lambda calls: calls.accounts.plans())
    if as_json:
        print_json(found)
    else:
        none = "No plans yet: an app declares them, or SQL does (penstock.declare_plan)."
        print_table(COLUMNS, [row(plan) for plan in found], none=none)


def row(plan: dict[str, Any]) -> list[Any]:
    """A plan as a row of COLUMNS."""
    return [
        plan["name"],
        plan["priority"],
        plan["concurrency"],
        plan["per_hour"],
        plan["weight"],
        plan["first_job"] or None,
        plan["accounts"],
        "yes" if plan["default"] else None,
        ", ".join(plan["overrides"]),
    ]


@app.command()
@taking(editable(PLAN))
def edit(name: Name, *, as_json: Json = False, **given: int | None) -> None:
    """Change a plan at run time: at once, for all its accounts, and over restarts."""
    options = {option: value for option, value in given.items() if value is not None}
    if not options:
        names = ", ".join(f"--{option.replace('_', '-')}" for option in given)
        raise typer.BadParameter(f"say what to change: {names}.", param_hint=name)

    async def ask(calls: Calls) -> dict[str, Any]:
        await calls.accounts.edit_plan(name, **options)
        return await _read(calls, name)

    after = with_calls(ask)
    if as_json:
        print_json(after)
        return
    changed = ", ".join(f"{option} {value:,}" for option, value in options.items())
    typer.echo(
        f"Plan {name} has {changed} now, for {count(after['accounts'], 'account')}."
        f" `penstock plans reset {name}` brings back what is declared."
    )


@app.command()
def reset(name: Name, *, as_json: Json = False) -> None:
    """Drop what was changed at run time, and let the next app that starts declare it anew."""

    async def ask(calls: Calls) -> tuple[dict[str, Any], dict[str, Any]]:
        before = await _read(calls, name)
        await calls.accounts.reset_plan(name)
        return before, await _read(calls, name)

    before, after = with_calls(ask)
    if as_json:
        print_json(after)
        return
    if before["overrides"]:
        typer.echo(f"Plan {name} is as declared again; dropped {', '.join(before['overrides'])}.")
    else:
        typer.echo(f"Plan {name} had nothing overridden: its limits are as declared.")
    by = f" (so far {before['declared_by']} did)" if before["declared_by"] else ""
    typer.echo(f"The next app that starts may declare it anew{by}.")


async def _read(calls: Calls, name: str) -> dict[str, Any]:
    for plan in await calls.accounts.plans():
        if plan["name"] == name:
            return plan
    known = [plan["name"] for plan in await calls.accounts.plans()]
    raise NotFound(
        f"there is no plan {name}; {listed(known)}.{did_you_mean(name, known)}",
        code="unknown_plan",
        field="plan",
    )
