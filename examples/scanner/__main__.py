"""Everything in one go:  python examples/scanner [--time-scale 0.1] [--port 8030]

Two workers and the web app are processes of their own, as they would be on a server. One that dies
is started again, and some scans kill theirs; Ctrl-C ends them all. The database is the one of
PENSTOCK_DSN, or an embedded Postgres under ./.penstock that starts and ends with them.
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
from urllib.parse import quote

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from parts import HOST, Ended, Part, is_free, keep_running, ready  # noqa: E402
from penstock import Penstock, PenstockError  # noqa: E402
from penstock.security.roots import read_roots  # noqa: E402

PORT = 8030
LAST_PORT = 65_535
# Three minutes until the banner are eighteen seconds.
TIME_SCALE = 0.1
# One that a scan has killed is missed by nobody while it starts again.
WORKERS = 2
# What is open when the web app is told to end may take so long.
LEAVE_SECONDS = "8"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python examples/scanner", description="A package scanner that recovers by itself."
    )
    parser.add_argument(
        "--time-scale",
        default=os.environ.get("SCANNER_TIME_SCALE") or f"{TIME_SCALE:g}",
        help="all waits shortened to this part of what they are, from 0.001 to 1 (default 0.1)",
    )
    parser.add_argument("--port", default=os.environ.get("SCANNER_PORT") or str(PORT))
    given = parser.parse_args()
    if not given.port.isdecimal() or not 0 < int(given.port) <= LAST_PORT:
        parser.error(f"--port is {given.port!r}; it may be a number from 1 to {LAST_PORT}")
    given.port = int(given.port)
    if not is_free(given.port):
        sys.exit(f"Port {given.port} is taken. Give another one with --port.")
    return given


def programs(port: int) -> list[Part]:
    serve = ("uvicorn", "scanner.app:web", "--port", str(port), "--no-access-log")
    workers = [
        Part(f"worker {number}", ("penstock", "worker", "scanner.jobs:app"))
        for number in range(1, WORKERS + 1)
    ]
    quietly = ("--log-level", "warning", "--timeout-graceful-shutdown", LEAVE_SECONDS)
    return [*workers, Part("web app", (*serve, *quietly), port)]


async def main() -> None:
    given = arguments()
    wanted = programs(given.port)
    os.environ["SCANNER_TIME_SCALE"] = given.time_scale
    secret = os.environ.get("SCANNER_ADMIN_SECRET") or secrets.token_urlsafe(12)
    os.environ["SCANNER_ADMIN_SECRET"] = secret
    paths = (str(FOLDER.parent), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    print("Starting the database, two workers and the web app …", flush=True)
    try:
        # Before the parts, so that what cannot be used is said once, in a sentence: a setting, a
        # database that is not there, or a secret that is missing.
        from scanner.jobs import app

        env = dict(os.environ)
        async with opened(app), asyncio.TaskGroup() as group:
            running = [group.create_task(keep_running(part, env, hurry)) for part in wanted]
            waiting = group.create_task(announce(wanted[-1], secret))
            await stop.wait()
            waiting.cancel()
            print("\nEnding; what runs may finish. Ctrl-C once more: at once.", flush=True)
            for task in reversed(running):
                task.cancel()
            await asyncio.wait(running)
    except* (Ended, PenstockError) as ended:
        sys.exit(str(ended.exceptions[0]))
    print("All has ended.", flush=True)


@asynccontextmanager
async def opened(app: Penstock) -> AsyncIterator[None]:
    try:
        read_roots(app.settings)
        await app.engine()
        yield
    finally:
        await app.close()


async def announce(web: Part, secret: str) -> None:
    await ready(web)
    site = f"http://{HOST}:{web.port}"
    print(f"Submit a package:  {site}", flush=True)
    print(f"As its operator:   {site}/operator#{quote(secret)}", flush=True)
    print(f'As JSON:           curl -H "Authorization: Bearer {secret}" \\', flush=True)
    print(f"                     {site}/api/v1/admin/queue/status   (or …/metrics)", flush=True)
    print("Ctrl-C ends everything.", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
