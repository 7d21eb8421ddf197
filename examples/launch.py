"""Shared by the examples' `__main__.py`: ports, common settings, starting and stopping the parts.

Each part is a process of its own, as on a server. A part that dies is started again; Ctrl-C stops
all parts. The database is that of PENSTOCK_DSN, or an embedded Postgres under ./.penstock that
starts and stops with them.
"""

import argparse
import asyncio
import importlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from parts import HOST, Part, PartFailed, is_free, keep_running, ready
from penstock import Penstock, PenstockError
from penstock.security.roots import read_roots

LAST_PORT = 65_535
# The time for open requests when the web app is stopped.
LEAVE_SOON = ("--timeout-graceful-shutdown", "8")


def add_port(parser: argparse.ArgumentParser, variable: str, usual: int) -> None:
    parser.add_argument(
        "--port",
        default=os.environ.get(variable) or str(usual),
        help=f"port of the web app (default: {variable} or {usual})",
    )


def free_or_exit(parser: argparse.ArgumentParser, option: str, port: str) -> int:
    """Return the given port if it can be used; otherwise exit with a message."""
    if not port.isdecimal() or not 0 < int(port) <= LAST_PORT:
        parser.error(f"{option} is {port!r}; it must be a number from 1 to {LAST_PORT}")
    if not is_free(int(port)):
        sys.exit(f"Port {port} is in use. Choose another one with {option}.")
    return int(port)


def common(name: str, made: str) -> str:
    """Set an environment variable for all parts to this value, unless it is set already."""
    os.environ[name] = os.environ.get(name) or made
    return os.environ[name]


def web_part(app: str, port: int, *words: str) -> Part:
    serve = ("uvicorn", app, "--port", str(port), "--no-access-log", "--log-level", "warning")
    return Part("web app", (*serve, *words), port)


def run(
    example: str,
    parts: Sequence[Part],
    greeting: Sequence[str],
    *,
    check: Callable[[Penstock], object] = lambda app: read_roots(app.settings),
    end_together: bool = False,
) -> None:
    """Run the parts until Ctrl-C; print the greeting when the last one, the web app, answers.

    They are stopped in turn, the last one first: a worker that finishes its job needs the model.
    """
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    asyncio.run(_run(example, parts, greeting, check, end_together=end_together))


async def _run(
    example: str,
    parts: Sequence[Part],
    greeting: Sequence[str],
    check: Callable[[Penstock], object],
    *,
    end_together: bool,
) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    print(f"Starting the database, the {', the '.join(one.name for one in parts)} …", flush=True)
    try:
        # Before the parts, so that a problem is reported once and in one sentence: a wrong setting,
        # a missing secret, an unreachable database, or an address that must not be called.
        app: Penstock = importlib.import_module(f"{example}.jobs").app
        env = dict(os.environ)
        async with _opened(app, check), asyncio.TaskGroup() as group:
            running = [group.create_task(keep_running(part, env, hurry)) for part in parts]
            waiting = group.create_task(_greet(parts[-1], greeting))
            await stop.wait()
            waiting.cancel()
            print(
                "\nStopping when running jobs have finished. Ctrl-C again: stop at once.",
                flush=True,
            )
            for task in reversed(running):
                task.cancel()
                if not end_together:
                    await asyncio.wait({task})
            await asyncio.wait(running)
    except* (PartFailed, PenstockError) as errors:
        sys.exit(str(errors.exceptions[0]))
    print("All parts have stopped.", flush=True)


@asynccontextmanager
async def _opened(app: Penstock, check: Callable[[Penstock], object]) -> AsyncIterator[None]:
    try:
        await app.engine()
        check(app)
        yield
    finally:
        await app.close()


async def _greet(web: Part, greeting: Sequence[str]) -> None:
    await ready(web)
    site = f"http://{HOST}:{web.port}"
    print(*(line.replace("{site}", site) for line in greeting), sep="\n", flush=True)
    print("Press Ctrl-C to stop.", flush=True)
