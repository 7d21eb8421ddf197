"""`penstock submit`: submit a job, and optionally wait until it has finished."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from penstock.base.settings import duration
from penstock.base.suggestions import did_you_mean
from penstock.base.wording import between, count, seconds
from penstock.cli.commands.jobs import why
from penstock.cli.output.console import (
    FAILED,
    CommandEngine,
    Json,
    answer,
    call_engine,
    print_error,
    print_json,
    taking,
)
from penstock.cli.output.render import clean
from penstock.engine.encoding.encode import encode, refuse_nul
from penstock.engine.engine import Engine
from penstock.engine.options.forms import Seconds
from penstock.engine.options.submit import SUBMIT
from penstock.engine.states import FINISHED, JobStatus
from penstock.errors import NotFound

if TYPE_CHECKING:
    from penstock.cli.output.waiting import Reads
    from penstock.client.kind import Kind

Follow = Callable[[CommandEngine | Engine, dict[str, Any]], Awaitable[dict[str, Any]]]

OPTIONS = tuple(option for option in SUBMIT if option.command)


@taking(OPTIONS)
def submit(  # noqa: PLR0913  # the options of the command itself
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The kind of job.")],
    *,
    data: Annotated[
        str,
        typer.Option(metavar="JSON", help="The payload: '{...}', @file, or - for standard input."),
    ] = "{}",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it has finished; 1 if it failed.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Longest wait; 1 if it has not finished by then."),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="APP",
            help="module:app or a penstock.toml: check the payload by its types; without it, the "
            "payload is checked when the job runs.",
        ),
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Submit a job of a kind that the database knows, or that APP declares."""
    payload = _payload(data)
    refuse_nul(kind, "kind")
    _read(options)
    if timeout is not None and not wait:
        raise typer.BadParameter("needs --wait.", param_hint="--timeout")
    limit = None if timeout is None else duration(timeout, field="--timeout")

    async def follow(engine: CommandEngine | Engine, job: dict[str, Any]) -> dict[str, Any]:
        read: "Reads" = engine.jobs.read
        only_submit = {name: job[name] for name in _ONLY_SUBMIT if name in job}
        if job["batch"] and not job["deduplicated"]:
            # A kind with `split`: the request is shown as a batch, also if it has a single job.
            read = engine.jobs.read_batch
            job = {**await read(UUID(job["batch"])), **only_submit}
        if not wait:
            return job
        # Imported here, since its progress bars take long to import.
        from penstock.cli.output.waiting import until_finished

        if not as_json:
            typer.echo(f"{_accepted(job)}{_nobody(job)}", err=True)
        return {**await until_finished(read, engine.lists, UUID(job["id"]), limit), **only_submit}

    if app is None:
        job = call_engine(lambda engine: _by_sql(engine, kind, payload, options, follow))
    else:
        declared = _declared(app, kind)  # before the loop: a module may run its own on import
        job = asyncio.run(_by_app(declared, payload, options, follow))
    if as_json or not wait:
        answer(job, _accepted, as_json=as_json)
    if wait:
        _report_end(job, limit, as_json=as_json)


async def _by_sql(
    engine: CommandEngine,
    kind: str,
    payload: dict[str, Any],
    options: dict[str, Any],
    follow: Follow,
) -> dict[str, Any]:
    delay = options["delay"]
    [row] = await engine.fetch(
        "select penstock.submit_job($1, $2::text::jsonb, account => $3, delay_seconds => $4,"
        " priority => $5, topic => $6, dedupe_key => $7,"
        " idempotency_key => $8) as job",
        (
            kind,
            encode(payload, "payload"),
            options["account"],
            None if delay is None else delay.total_seconds(),
            options["priority"],
            options["topic"],
            options["dedupe_key"],
            options["idempotency_key"],
        ),
    )
    return await follow(engine, row["job"])


def _declared(name: str, kind: str) -> "Kind[..., Any]":
    from penstock.client.config.find import find_app

    app = find_app(name)
    if kind not in app.kinds:
        known = ", ".join(sorted(app.kinds)) or "none"
        raise NotFound(
            f"{name} declares no job kind {kind}; it has {known}.{did_you_mean(kind, app.kinds)}",
            code="unknown_kind",
            field="kind",
        )
    return app.kinds[kind]


async def _by_app(
    declared: "Kind[..., Any]", payload: dict[str, Any], options: dict[str, Any], follow: Follow
) -> dict[str, Any]:
    app = declared.app
    try:
        ticket = await declared.using(**options).submit(**payload)
        engine = await app.engine()
        only_submit = {name: getattr(ticket, name) for name in _ONLY_SUBMIT}
        return await follow(engine, {**await engine.jobs.read(ticket.id), **only_submit})
    finally:
        await app.close()


def _read(options: dict[str, Any]) -> None:
    for option in OPTIONS:
        given = options[option.name]
        if isinstance(option.form, Seconds) and given is not None:
            options[option.name] = duration(given, field=f"--{option.name}")
        elif isinstance(given, str):
            refuse_nul(given, option.name)


def _payload(data: str) -> dict[str, Any]:
    """Parse the JSON object; messages do not quote its content."""
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


# Members that only the answer to a submit has.
_ONLY_SUBMIT = ("deduplicated", "replayed", "balance")


# Reasons that the submitting person can do something about.
_NO_WORKER = {
    "no_worker": " No worker that serves its queue is alive: `penstock worker APP` starts one.",
    "no_handler": " No worker has a handler for its kind: start one with the app that declares it.",
}


def _nobody(job: dict[str, Any]) -> str:
    return _NO_WORKER.get(str(job.get("waiting_for")), "")


def _accepted(job: dict[str, Any]) -> str:
    if job["deduplicated"]:
        return f"Job {job['id']} already does the same; it is {job['status']}."
    of = f" of {count(job['total'], 'job')}" if "items" in job else ""
    paid = f" The balance is {job['balance']:,}." if job["credits"] else ""
    named = _named(job)
    return f"Submitted {named[0].lower()}{named[1:]}{of}, now {job['status']}.{paid}"


def _named(job: dict[str, Any]) -> str:
    return f"{'Batch' if 'items' in job else 'Job'} {job['id']}"


def _report_end(job: dict[str, Any], limit: timedelta | None, *, as_json: bool) -> None:
    if job["status"] not in FINISHED:
        assert limit is not None  # noqa: S101  # only the limit ends the wait early
        print_error(
            f"{_named(job)} has not finished within {seconds(limit.total_seconds())}: it is"
            f" {job['status']} and goes on;"
            f" `penstock show {job['id']}` shows it.{_nobody(job)}"
        )
    elif not as_json:
        _print_end(job)
    if job["status"] != JobStatus.SUCCEEDED:
        raise typer.Exit(FAILED)


def _print_end(job: dict[str, Any]) -> None:
    """Print the result, or a batch's results in order, to standard output; errors to the other."""
    jobs, has_succeeded = job.get("items", [job]), job["status"] == JobStatus.SUCCEEDED
    if "items" in job:
        print_error(
            f"{_named(job)} {job['status']} after {between(job['created_at'], job['finished_at'])}:"
            f" {job['succeeded']:,} of {count(job['total'], 'job')} succeeded."
        )
    elif has_succeeded:
        took = between(job["started_at"], job["finished_at"])
        print_error(f"{_named(job)} succeeded in {took}.")
    for each in jobs:
        if each["status"] != JobStatus.SUCCEEDED:
            error = clean(why(each["error"], each["status"])) if each["error"] else ""
            print_error(f"Job {each['id']} {each['status']}{': ' if error else ''}{error}")
    if has_succeeded:
        results = [each["result"] for each in jobs]
        print_json(results if "items" in job else results[0], indent=2)
