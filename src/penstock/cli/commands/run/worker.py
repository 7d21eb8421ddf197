"""`penstock worker`: run the jobs of an app."""

import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.settings import duration
from penstock.base.wording import count
from penstock.cli.commands.run.serve import require_kinds
from penstock.cli.output.console import Json, answer, print_error
from penstock.cli.serving.loop import BY_SIGNAL, run_loop, stop_signals
from penstock.db.connections.display_address import display_address

if TYPE_CHECKING:
    from penstock.client.app import Penstock
    from penstock.worker.worker import Options, Ran

# Each process needs the memory of a program: at most this many, or one per core if that is more.
_PROCESSES = 4


def worker(  # noqa: PLR0913  # one per option of the contract
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="APP",
            help="module:app, or a penstock.toml; without it, the penstock.toml of this folder.",
        ),
    ] = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Run one job, if one is due.")] = False,
    max_jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Run at most N jobs, while some are due.")
    ] = None,
    daemon: Annotated[bool, typer.Option("--daemon", help="Run for ever; the default.")] = False,
    queues: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these queues; all by default.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Jobs at once; by default 500 async ones and 32 in threads.",
        ),
    ] = None,
    recycle_after: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Restart after N jobs.")
    ] = None,
    poll: Annotated[
        str | None,
        typer.Option(metavar="S", help="How often to poll for work, besides wake-ups; 1s."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run jobs until stopped (SIGTERM, Ctrl-C); running jobs may finish, late ones are released."""
    given = {"--once": once, "--max-jobs": max_jobs is not None, "--daemon": daemon}
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise typer.BadParameter(f"{' and '.join(chosen)} exclude one another.")
    if recycle_after is not None and (once or max_jobs is not None):
        raise typer.BadParameter(f"{chosen[0]} is a bounded run; --recycle-after is for --daemon.")
    options: dict[str, Any] = {
        "max_jobs": 1 if once else max_jobs,
        "until_idle": once or max_jobs is not None,
        "recycle_after": recycle_after,
    }
    if poll is not None:
        options["poll"] = duration(poll, field="--poll")
        if options["poll"] < timedelta(milliseconds=10):
            raise typer.BadParameter("must be at least 0.01 seconds.", param_hint="--poll")
    if concurrency is not None:
        processes = min(concurrency, max(_PROCESSES, os.cpu_count() or 1))
        options |= {"concurrency": concurrency, "threads": concurrency, "processes": processes}
    names = None if queues is None else tuple(name.strip() for name in queues.split(","))
    if names is not None and not all(names):
        raise typer.BadParameter("must be names with commas between.", param_hint="--queues")
    # Before the loop: the module may run its own while it is imported.
    loaded = _find(app, names)
    ran = run_loop(_work(loaded, names, options, as_json=as_json))
    if isinstance(ran, int):
        raise typer.Exit(BY_SIGNAL + ran)
    jobs = count(ran.processed, "job")
    done = f"Ran {jobs}: {_WHY.get(ran.reason)}."
    recycles = ran.reason == "recycle"
    answer(
        {"processed": ran.processed, "reason": ran.reason},
        lambda _: f"Recycling after {jobs}." if recycles else done,
        as_json=as_json,
    )
    if recycles:
        sys.stderr.flush()
        # The same command line in the same process, so a supervisor sees no exit.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


_WHY = {
    "stopped": "stopped by a signal",
    "idle": "nothing more is due",
    "max_jobs": "the requested number",
}


def _find(name: str | None, queues: tuple[str, ...] | None) -> "Penstock":
    """Return the app; refuse queues for which it has no handler."""
    from penstock.client.config.find import find_app

    app = find_app(name)
    known = _queues(app)
    if unknown := set(queues or ()) - set(known):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: the app has no handler for it;"
            f" it has handlers for {', '.join(known)}.",
            param_hint="--queues",
        )
    return app


async def _work(
    app: "Penstock", queues: tuple[str, ...] | None, options: dict[str, Any], *, as_json: bool
) -> "Ran | int":
    """Run the app's jobs; return the signal's number if a second one made it leave at once."""
    from penstock.worker.memory import settle_memory
    from penstock.worker.worker import Options, Worker

    chosen = Options(
        name=app.settings.worker_id,
        queues=queues,
        tracebacks=app.settings.tracebacks,
        **options,
    )
    try:
        await app.engine()  # starts an embedded database, refuses an old schema, declares
        dsn = await app.dsn()
        running = Worker(dsn, app.handlers(), chosen)
        if not chosen.until_idle:
            settle_memory()

        def stop(times: int) -> None:
            """Stop gracefully at the first signal, and at once at the second."""
            if times == 1:
                running.stop()
                print_error("Stopping: running jobs may finish. Once more releases them at once.")
            else:
                running.stop_at_once()
                print_error("Leaving now: running jobs are released.")

        with stop_signals(stop) as received:
            # Here, since a reader of this line may send a signal at once.
            _greet(chosen, queues or _queues(app), dsn, as_json=as_json)
            ran = await running.run()
        return received[-1] if len(received) > 1 else ran
    finally:
        await app.close()


def _queues(app: "Penstock") -> tuple[str, ...]:
    require_kinds(app)
    return tuple(sorted({kind.queue for kind in app.kinds.values()}))


def _greet(options: "Options", queues: tuple[str, ...], dsn: str, *, as_json: bool) -> None:
    where = display_address(dsn)
    answer(
        {"worker": options.name, "queues": queues, "database": where},
        lambda _: f"Worker {options.name} serves {', '.join(queues)} at {where}.",
        as_json=as_json,
    )
