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

from penstock.base.settings import duration
from penstock.base.wording import count
from penstock.cli.output.console import Json, print_json
from penstock.db.connections.display_address import place
from penstock.errors import Misconfigured

if TYPE_CHECKING:
    from penstock.client.app import Penstock
    from penstock.worker.worker import Options, Ran, Worker

# Each weighs as much as a program: no more than this, or than there are cores.
_PROCESSES = 4
# What a shell adds to the number of the signal that ended a program.
_BY_SIGNAL = 128


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
    # Before there is a loop: the module may use one of its own while it is loaded.
    found = _find(app, wanted)
    ran = _run(_work(found, wanted, options, as_json=as_json))
    if isinstance(ran, int):
        raise typer.Exit(_BY_SIGNAL + ran)
    if ran.reason == "recycle":
        if as_json:
            print_json({"processed": ran.processed, "reason": ran.reason})
        else:
            typer.echo(f"Recycling after {count(ran.processed, 'job')}.")
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
    "max_jobs": "as many as were asked for",
}


def _names(queues: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in queues.split(","))
    if not all(names):
        raise typer.BadParameter("must be names with commas between.", param_hint="--queues")
    return names


def _run(work: Any) -> "Ran | int":
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        ran: Ran | int = runner.run(work)
        return ran


def _find(name: str | None, queues: tuple[str, ...] | None) -> "Penstock":
    """The app, which has handlers for these queues."""
    from penstock.client.config.find import find_app

    app = find_app(name)
    known = _queues(app)
    if unknown := set(queues or ()) - set(known):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: no handler of the app waits there;"
            f" it has {', '.join(known)}.",
            param_hint="--queues",
        )
    return app


async def _work(
    app: "Penstock", queues: tuple[str, ...] | None, options: dict[str, Any], *, as_json: bool
) -> "Ran | int":
    """Run the app's jobs; the number of the signal, when a second one made it leave at once."""
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
        with _Signals(running) as signals:
            # Whoever reads this may send a signal at once.
            _greet(chosen, queues or _queues(app), dsn, as_json=as_json)
            ran = await running.run()
        return signals.heard[-1] if len(signals.heard) > 1 else ran
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
        self.heard: list[int] = []

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._hear, number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    def _hear(self, number: int) -> None:
        self.heard.append(number)
        if len(self.heard) == 1:
            self._worker.stop()
            said = "Stopping: what runs may end. Once more gives it back at once."
        else:
            self._worker.stop_now()
            said = "Leaving now: what runs is given back."
        with suppress(OSError):  # the terminal may be gone
            typer.echo(said, err=True)
