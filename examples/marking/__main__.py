"""Everything in one go:  python examples/marking [--port 8040] [--drive worker|http]

The function, a worker and the web app are processes of their own, as they would be on a server. One
that dies is started again; Ctrl-C ends them all. With --drive http there is no worker: calls over
HTTP do its work. The database is the one of PENSTOCK_DSN, or an embedded Postgres under ./.penstock
that starts and ends with them.
"""

import argparse
import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from parts import HOST, Ended, Part, free_port, is_free, keep_running, ready  # noqa: E402
from penstock import Penstock, PenstockError  # noqa: E402

PORT = 8040
LAST_PORT = 65_535
DRIVES = ("worker", "http")
# A mark takes about so long: thirty of them can be watched.
FUNCTION_SECONDS = 2.0
# What is open when the web app is told to end may take so long.
LEAVE_SECONDS = "8"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python examples/marking", description="A class's answers, marked by a function."
    )
    parser.add_argument("--port", default=os.environ.get("MARKING_PORT") or str(PORT))
    parser.add_argument(
        "--drive",
        choices=DRIVES,
        default=os.environ.get("MARKING_DRIVE") or DRIVES[0],
        help="who takes jobs: a worker that stands by, or calls over HTTP",
    )
    given = parser.parse_args()
    if not given.port.isdecimal() or not 0 < int(given.port) <= LAST_PORT:
        parser.error(f"--port is {given.port!r}; it may be a number from 1 to {LAST_PORT}")
    given.port = int(given.port)
    if given.drive not in DRIVES:
        parser.error(f"MARKING_DRIVE is {given.drive!r}; it may be {' or '.join(DRIVES)}")
    if not is_free(given.port):
        sys.exit(f"Port {given.port} is taken. Give another one with --port.")
    return given


def function_part() -> Part | None:
    """The function to start; None for one that runs already. Tells the others where it is."""
    if os.environ.get("MARKING_FUNCTION_URL"):
        return None
    port, control = free_port(), free_port()
    os.environ["MARKING_FUNCTION_URL"] = f"http://{HOST}:{port}/mark"
    os.environ["MARKING_CONTROL_URL"] = f"http://{HOST}:{control}"
    seconds = os.environ.get("FUNCTION_SECONDS") or f"{FUNCTION_SECONDS:g}"
    words = ("marking.function", "--port", str(port), "--control", str(control))
    return Part("function", (*words, "--seconds", seconds), port)


def programs(port: int, drive: str) -> list[Part]:
    serve = ("uvicorn", "marking.app:web", "--port", str(port), "--no-access-log")
    quietly = ("--log-level", "warning", "--timeout-graceful-shutdown", LEAVE_SECONDS)
    found = [Part("web app", (*serve, *quietly), port)]
    if drive == "worker":
        found.insert(0, Part("worker", ("penstock", "worker", "marking.jobs:app")))
    first = function_part()
    return found if first is None else [first, *found]


def settle(port: int, drive: str) -> str:
    """What the parts have to know in common; the teacher's code."""
    environ = os.environ
    environ["MARKING_DRIVE"] = drive
    for name in ("MARKING_TEACHER_CODE", "MARKING_QUEUE_SECRET", "MARKING_FUNCTION_SECRET"):
        environ[name] = environ.get(name) or secrets.token_urlsafe(12)
    # One secret for every start of the web app, or a restart would sign everybody out.
    environ["MARKING_SECRET"] = environ.get("MARKING_SECRET") or secrets.token_hex(32)
    # Where the function calls back; AI_MARKING_CALLBACK_URL says otherwise, as a tunnel needs it.
    environ["PENSTOCK_PUBLIC_URL"] = environ.get("PENSTOCK_PUBLIC_URL") or f"http://{HOST}:{port}"
    paths = (str(FOLDER.parent), environ.get("PYTHONPATH"))
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environ["MARKING_TEACHER_CODE"]


async def main() -> None:
    given = arguments()
    wanted = programs(given.port, given.drive)
    code = settle(given.port, given.drive)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    print(f"Starting the database, the {', the '.join(one.name for one in wanted)} …", flush=True)
    try:
        # Before the parts, so that what cannot be used is said once, in a sentence: a database
        # that is not there, or a secret that is missing.
        from marking.jobs import app

        env = dict(os.environ)
        async with opened(app), asyncio.TaskGroup() as group:
            running = [group.create_task(keep_running(part, env, hurry)) for part in wanted]
            waiting = group.create_task(announce(wanted[-1], code))
            await stop.wait()
            waiting.cancel()
            print("\nEnding; what runs may finish. Ctrl-C once more: at once.", flush=True)
            # The last first: what is handed over by then is waited for at the next start.
            for task in reversed(running):
                task.cancel()
                await asyncio.wait({task})
    except* (Ended, PenstockError) as ended:
        sys.exit(str(ended.exceptions[0]))
    print("All has ended.", flush=True)


@asynccontextmanager
async def opened(app: Penstock) -> AsyncIterator[None]:
    try:
        app.outside()
        await app.engine()
        yield
    finally:
        await app.close()


async def announce(web: Part, code: str) -> None:
    await ready(web)
    print(f"The results:  http://{HOST}:{web.port}/sign-in?code={code}", flush=True)
    print("Ctrl-C ends everything.", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
