"""`penstock check`, `doctor`, `prune`: find what is wrong with the database, remove old jobs."""

import asyncio
import dataclasses
from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.base.settings import Settings, duration
from penstock.base.wording import count
from penstock.cli.output.console import (
    FAILED,
    CommandEngine,
    Json,
    answer,
    call_engine,
    database,
)
from penstock.cli.output.render import STYLES, clean, print_lines
from penstock.engine.doctor.doctor import examine
from penstock.engine.doctor.finding import Finding, of_error
from penstock.errors import PenstockError

OLDER_THAN = "10s"
# Each pass drops at most one partition of each kind; this is enough for decades.
PASSES = 10_000


def check(
    *,
    liveness: Annotated[
        bool,
        typer.Option("--liveness", help="Check instead for work that is overdue."),
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="10s|1m",
            help=f"With --liveness: overdue for this long; {OLDER_THAN} by default.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every invariant of the data; exit with 1 if one is broken."""
    if older_than is not None and not liveness:
        raise typer.BadParameter("it goes with --liveness only", param_hint="--older-than")
    length = duration(older_than or OLDER_THAN, field="--older-than")

    async def find(engine: CommandEngine) -> list[dict[str, Any]]:
        if liveness:
            overdue = await engine.lists.overdue(length)
            return [row | {"since": row["since"].isoformat()} for row in overdue]
        return [dict(row) for row in await engine.fetch("select * from penstock.check()", ())]

    rows = call_engine(find)
    sound = "Nothing is overdue." if liveness else "Every invariant holds."
    answer(rows, lambda rows: "\n".join(map(_cells, rows)) or sound, as_json=as_json)
    if rows:
        raise typer.Exit(FAILED)


def _cells(row: dict[str, Any]) -> str:
    return "  ".join(clean(value) for value in row.values())


def doctor(
    app: Annotated[
        str | None,
        typer.Argument(metavar="APP", help="module:app or a penstock.toml, to check it, too."),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Examine connection, server, schema, rights and jobs; exit with 1 if something is bad."""
    findings: list[Finding] = []

    def add(finding: Finding) -> None:
        findings.append(finding)
        if not as_json:
            print_lines([_line(finding)])

    async def examine_database() -> None:
        async for finding in examine(wanted):
            add(finding)

    wanted = database()
    if app is not None:
        finding, wanted = _app(app, wanted)
        add(finding)
    asyncio.run(examine_database())
    bad = sum(finding.level == "bad" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    answer(
        [dataclasses.asdict(finding) for finding in findings],
        lambda _: (
            f"{bad} bad, {count(warnings, 'warning')}." if bad or warnings else "All is well."
        ),
        as_json=as_json,
    )
    if bad:
        raise typer.Exit(FAILED)


def _app(name: str, wanted: Settings) -> tuple[Finding, Settings]:
    """Return whether the app can be loaded, and the settings with its own database."""
    from penstock.client.config.find import find_app

    try:
        app = find_app(name)
    except PenstockError as error:
        return of_error("app", error, "Correct it, and run doctor again."), wanted
    declared = f"{count(len(app.queues), 'queue')} and {count(len(app.kinds), 'job kind')}"
    return Finding("app", "ok", f"{name} declares {declared}"), app.settings


def _line(finding: Finding) -> Text:
    advice = f". {clean(finding.advice)}" if finding.advice else ""
    return Text.assemble(
        (f"{finding.level:<9}", STYLES[finding.level]),
        (f"{finding.name:<14}", "bold"),
        f"{clean(finding.message)}{advice}",
        end="",
    )


def prune(*, as_json: Json = False) -> None:
    """Remove finished jobs that are older than their queue's retention.

    Workers do the same in the background; this command does it at once.
    """
    answer(call_engine(_prune), _pruned, as_json=as_json)


async def _prune(engine: CommandEngine) -> dict[str, Any]:
    partitions: list[str] = []
    rows = 0
    for _ in range(PASSES):
        removed = await engine.upkeep.prune()
        partitions += [item.what for item in removed if item.rows is None]
        rows += sum(item.rows or 0 for item in removed)
        if not removed:
            break
    return {"partitions": partitions, "rows": rows}


def _pruned(removed: dict[str, Any]) -> str:
    rows, partitions = removed["rows"], removed["partitions"]
    if not rows and not partitions:
        return "Nothing is older than its retention."
    return f"Removed {count(len(partitions), 'partition')} of history and {count(rows, 'row')}."
