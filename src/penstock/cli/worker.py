"""`penstock worker`: run the jobs of an app."""

import asyncio
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from penstock.cli.console import INTERRUPTED, Json, print_json
from penstock.cli.render import count
from penstock.db.connect import place
from penstock.errors import Misconfigured
from penstock.settings import duration

if TYPE_CHECKING:
    from penstock.app import Penstock
    from penstock.worker.worker import Options, Ran, Worker

# Each weighs as much as a program: no more than this, or than there are cores.
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
        int | None, typer.Option(metavar="N", min=1, help="Run N jobs at most, while some are due.")
    ] = None,
    daemon: Annotated[bool, typer.Option("--daemon", help="Run for ever; the default.")] = False,
    queues: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these queues; all, unless given.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Jobs at once; unless given, 500 async ones and 32 in threads.",
        ),
    ] = None,
    recycle_after: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Start anew after N jobs.")
    ] = None,
    poll: Annotated[
        str | None,
        typer.Option(metavar="S", help="How often to look for work beside being told; 1s."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run jobs until told to stop (SIGTERM, Ctrl-C): what runs may end, the rest goes back."""
    given = {"--once": once, "--max-jobs": max_jobs is not None, "--daemon": daemon}
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise typer.BadParameter(f"{' and '.join(chosen)} exclude one another.")
    if recycle_after is not None and (once or max_jobs is not None):
        raise typer.BadParameter(f"{chosen[0]} ends by itself; --recycle-after is for --daemon.")
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
        options |= {
            "concurrency": concurrency,
            "threads": concurrency,
            "processes": min(concurrency, max(_PROCESSES, os.cpu_count() or 1)),
        }
    wanted = None if queues is None else _names(queues)
    ran = _run(_work(app, wanted, options, as_json=as_json))
    if ran is None:
        raise typer.Exit(INTERRUPTED)
    if ran.reason == "recycle":
        sys.stdout.flush()
        sys.stderr.flush()
        # The same command line in the same process: a supervisor sees no end.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    if as_json:
        print_json({"processed": ran.processed, "reason": ran.reason})
    else:
        typer.echo(f"Ran {count(ran.processed, 'job')}: {_WHY[ran.reason]}.")


_WHY = {
    "stopped": "told to stop",
    "idle": "nothing more is due",
    "max_jobs": "that was enough",
}


def _names(queues: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in queues.split(","))
    if not all(names):
        raise typer.BadParameter("must be names with commas between.", param_hint="--queues")
    return names


def _run(work: Any) -> "Ran | None":
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        ran: Ran | None = runner.run(work)
        return ran


async def _work(
    name: str | None, queues: tuple[str, ...] | None, options: dict[str, Any], *, as_json: bool
) -> "Ran | None":
    """Run the app's jobs; None when a second signal made it leave at once."""
    from penstock.app.find import find_app
    from penstock.worker.worker import Options, Worker

    app = find_app(name)
    known = _queues(app)
    if unknown := set(queues or ()) - set(known):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: no handler of the app waits there;"
            f" it has {', '.join(known)}.",
            param_hint="--queues",
        )
    chosen = Options(name=app.settings.worker_id, queues=queues, **options)
    try:
        await app.engine()  # starts an embedded database, refuses an old schema, declares
        dsn = await app.dsn()
        running = Worker(dsn, app.handlers(), chosen)
        with _Signals(running) as signals:
            # Whoever reads this may send a signal at once.
            _greet(chosen, queues or known, dsn, as_json=as_json)
            ran = await running.run()
        return None if signals.heard > 1 else ran
    finally:
        await app.close()


def _queues(app: "Penstock") -> tuple[str, ...]:
    known = sorted({handler.queue for handler in app.handlers().values()})
    if not known:
        raise Misconfigured(
            "The app declares no job kind, so there is nothing to run: `@app.job(queue=...)`."
        )
    return tuple(known)


def _greet(options: "Options", queues: tuple[str, ...], dsn: str, *, as_json: bool) -> None:
    where = place(dsn)
    if as_json:
        print_json({"worker": options.name, "queues": queues, "database": where})
    else:
        typer.echo(f"Worker {options.name} serves {', '.join(queues)} at {where}.")
    sys.stdout.flush()


class _Signals:
    """The first SIGTERM or SIGINT asks the worker to leave, the second makes it."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        self.heard = 0

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    def _hear(self) -> None:
        self.heard += 1
        if self.heard == 1:
            self._worker.stop()
            said = "Stopping: what runs may end. Once more gives it back at once."
        else:
            self._worker.stop_now()
            said = "Leaving now: what runs is given back."
        with suppress(OSError):  # the terminal may be gone
            typer.echo(said, err=True)
