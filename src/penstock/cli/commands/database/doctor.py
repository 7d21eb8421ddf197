"""`penstock doctor`: what is wrong, and what to do about it."""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Annotated

import typer
from rich.text import Text

from penstock.base.settings import Settings
from penstock.base.wording import count
from penstock.cli.output.console import Json, database, print_json
from penstock.cli.output.render import STYLES, clean, print_lines
from penstock.engine.doctor.doctor import examine
from penstock.engine.doctor.finding import Finding, of_error
from penstock.errors import PenstockError


def doctor(
    app: Annotated[
        str | None,
        typer.Argument(metavar="APP", help="module:app or a penstock.toml, to look at it too."),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Look at connection, server, schema, rights and jobs; exit with 1 when something is bad."""
    findings: list[Finding] = []

    def tell(finding: Finding) -> None:
        findings.append(finding)
        if not as_json:
            print_lines([_line(finding)])

    wanted = database()
    if app is not None:
        finding, wanted = _app(app, wanted)
        tell(finding)
    asyncio.run(_examine(wanted, tell))
    bad = sum(finding.level == "bad" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    elif bad or warnings:
        typer.echo(f"{bad} bad, {count(warnings, 'warning')}.")
    else:
        typer.echo("All is well.")
    if bad:
        raise typer.Exit(1)


async def _examine(wanted: Settings, tell: Callable[[Finding], None]) -> None:
    async for finding in examine(wanted):
        tell(finding)


def _app(name: str, wanted: Settings) -> tuple[Finding, Settings]:
    """Whether the app can be found, and the database it names for itself."""
    from penstock.client.config.find import find_app

    try:
        app = find_app(name)
    except PenstockError as error:
        return of_error("app", error, "Correct it, and look again."), wanted
    declared = f"{count(len(app.queues), 'queue')} and {count(len(app.kinds), 'job kind')}"
    return Finding("app", "ok", f"{name} declares {declared}"), app.settings


def _line(finding: Finding) -> Text:
    line = Text(end="")
    line.append(f"{finding.level:<9}", STYLES[finding.level])
    line.append(f"{finding.name:<14}", "bold")
    line.append(clean(finding.message))
    if finding.advice:
        line.append(f". {clean(finding.advice)}")
    return line
