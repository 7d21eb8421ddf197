"""`penstock submit`: hand in a job, and perhaps wait for its end."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from penstock.cli.console import FAILED, Calls, Json, print_json, with_calls
from penstock.cli.jobs import why
from penstock.cli.render import between, clean, seconds
from penstock.cli.waiting import until_finished
from penstock.engine import Engine
from penstock.engine.encode import encode, refuse_nul
from penstock.errors import NotFound
from penstock.settings import duration
from penstock.states import FINISHED, JobStatus

if TYPE_CHECKING:
    from penstock.app import Kind

Told = Callable[[Calls | Engine, dict[str, Any]], Awaitable[dict[str, Any]]]


def submit(  # noqa: PLR0913  # one per option of the contract
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The kind of job.")],
    *,
    data: Annotated[
        str,
        typer.Option(metavar="JSON", help="The payload: '{...}', @file, or - for standard input."),
    ] = "{}",
    account: Annotated[str | None, typer.Option(help="Whose job it is.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; 1 if it failed.")] = False,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Wait so long at most; 1 if it is not over then."),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="APP", help="module:app or a penstock.toml: check the payload by its types."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Submit a job of a kind that the database knows, or that APP declares."""
    payload = _payload(data)
    for name, text in (("kind", kind), ("account", account)):
        refuse_nul(text, name)

    limit = _limit(timeout, wait=wait)

    async def follow(on: Calls | Engine, job: dict[str, Any]) -> dict[str, Any]:
        if wait:
            if not as_json:
                typer.echo(_accepted(job), err=True)
            ended = await until_finished(on.jobs, on.lists, UUID(job["id"]), limit)
            return {**ended, **_how(job)}
        return job

    if app is None:
        job = with_calls(lambda calls: _by_sql(calls, kind, payload, account, follow))
    else:
        declared = _declared(app, kind)  # before the loop: a module may use one of its own
        job = asyncio.run(_by_app(declared, payload, account, follow))
    if as_json:
        print_json(job)
    elif not wait:
        typer.echo(_accepted(job))
    if wait:
        _tell_end(job, limit, as_json=as_json)


async def _by_sql(
    calls: Calls, kind: str, payload: dict[str, Any], account: str | None, follow: Told
) -> dict[str, Any]:
    [row] = await calls.fetch(
        "select penstock.submit_job($1, $2::text::jsonb, account => $3) as job",
        (kind, encode(payload, "payload"), account),
    )
    return await follow(calls, row["job"])


def _declared(name: str, kind: str) -> "Kind[..., Any]":
    from penstock.app.find import find_app

    app = find_app(name)
    if kind not in app.kinds:
        known = ", ".join(sorted(app.kinds)) or "none"
        raise NotFound(
            f"{name} declares no job kind {kind}; it has {known}", code="unknown_kind", field="kind"
        )
    return app.kinds[kind]


async def _by_app(
    declared: "Kind[..., Any]", payload: dict[str, Any], account: str | None, follow: Told
) -> dict[str, Any]:
    app = declared.app
    try:
        ticket = await declared.using(account=account).submit(**payload)
        job = await ticket.status()
        told = {**job, "deduplicated": ticket.deduplicated, "replayed": ticket.replayed}
        return await follow(await app.engine(), told)
    finally:
        await app.close()


def _limit(timeout: str | None, *, wait: bool) -> timedelta | None:
    if timeout is None:
        return None
    if not wait:
        raise typer.BadParameter("is for --wait.", param_hint="--timeout")
    return duration(timeout, field="--timeout")


def _payload(data: str) -> dict[str, Any]:
    """The JSON object that was given; its content is in no message."""
    try:
        value = json.loads(_text(data))
    except json.JSONDecodeError as error:
        raise typer.BadParameter(
            f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
            param_hint="--data",
        ) from None
    except RecursionError:
        raise typer.BadParameter("is nested too deep.", param_hint="--data") from None
    if not isinstance(value, dict):
        raise typer.BadParameter('must be a JSON object, like {"n": 1}.', param_hint="--data")
    return value


def _text(data: str) -> str:
    try:
        if data == "-":
            return sys.stdin.buffer.read().decode()
        if data.startswith("@"):
            return Path(data[1:]).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise typer.BadParameter("is not UTF-8 text.", param_hint="--data") from None
    except OSError as error:
        raise typer.BadParameter(
            f"cannot read {data[1:] or 'a file without a name'}: {error.strerror or error}.",
            param_hint="--data",
        ) from None
    return data


def _how(job: dict[str, Any]) -> dict[str, Any]:
    return {name: job[name] for name in ("deduplicated", "replayed") if name in job}


def _accepted(job: dict[str, Any]) -> str:
    if job["deduplicated"]:
        return f"Job {job['id']} does the same already; it is {job['status']}."
    return f"Submitted job {job['id']}, now {job['status']}."


def _tell_end(job: dict[str, Any], limit: timedelta | None, *, as_json: bool) -> None:
    if job["status"] not in FINISHED:
        assert limit is not None  # noqa: S101  # nothing else ends the waiting before
        typer.echo(
            f"Job {job['id']} has not ended within {seconds(limit.total_seconds())}: it is"
            f" {job['status']} and goes on;"
            f" `penstock show {job['id']}` tells how.",
            err=True,
        )
    elif not as_json:
        _print_end(job)
    if job["status"] != JobStatus.SUCCEEDED:
        raise typer.Exit(FAILED)


def _print_end(job: dict[str, Any]) -> None:
    took = between(job["started_at"], job["finished_at"])
    if job["status"] == JobStatus.SUCCEEDED:
        typer.echo(f"Job {job['id']} succeeded in {took}.", err=True)
        print_json(job["result"], indent=2)
        return
    told = clean(why(job["error"], job["status"])) if job["error"] else ""
    typer.echo(f"Job {job['id']} {job['status']}{': ' + told if told else ''}", err=True)
