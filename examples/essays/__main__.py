"""Everything in one go:  python examples/essays [--port 8000]

Model, worker and web app are processes of their own, as they would be on a server. One that dies
is started again; Ctrl-C ends them all. The database is the one of PENSTOCK_DSN, or an embedded
Postgres under ./.penstock that starts and ends with them.
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

from parts import HOST, Ended, Part, is_free, keep_running, ready  # noqa: E402
from penstock import Penstock, PenstockError  # noqa: E402
from penstock.security.roots import read_roots  # noqa: E402

PORT = 8000
MODEL_PORT = 8001


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python examples/essays",
        description="Practise writing: essays that a slow model scores in the background.",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=int(os.environ.get("ESSAYS_PORT") or PORT),
        help=f"where the web app listens (ESSAYS_PORT, or {PORT})",
    )
    parser.add_argument(
        "--model-port",
        type=int,
        default=int(os.environ.get("MODEL_PORT") or MODEL_PORT),
        help=f"where the stand-in for the model listens (MODEL_PORT, or {MODEL_PORT})",
    )
    given = parser.parse_args()
    wanted = [given.port] if os.environ.get("AI_SERVICE_URL") else [given.port, given.model_port]
    for port in wanted:
        if not is_free(port):
            sys.exit(f"Port {port} is taken. Give another one with --port or --model-port.")
    return given


def programs(port: int, model_port: int) -> list[Part]:
    serve = ("uvicorn", "essays.app:web", "--port", str(port), "--no-access-log")
    found = [
        Part("worker", ("penstock", "worker", "essays.jobs:app")),
        Part("web", (*serve, "--log-level", "warning"), port),
    ]
    if not os.environ.get("AI_SERVICE_URL"):
        os.environ["AI_SERVICE_URL"] = f"http://{HOST}:{model_port}"
        found.insert(0, Part("model", ("essays.model", "--port", str(model_port)), model_port))
    return found


async def main() -> None:
    given = arguments()
    wanted = programs(given.port, given.model_port)
    # One secret for every start of the web app, or a restart would sign everybody out.
    os.environ["ESSAYS_SECRET"] = os.environ.get("ESSAYS_SECRET") or secrets.token_hex(32)
    paths = (str(FOLDER.parent), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    print("Starting the database, the model, a worker and the web app …", flush=True)
    try:
        # Before the parts, so that what cannot be used is said once, in a sentence: a database
        # that is not there, or one of yours without PENSTOCK_SECRET.
        from essays.jobs import app

        env = dict(os.environ)
        async with opened(app), asyncio.TaskGroup() as group:
            running = [group.create_task(keep_running(part, env, hurry)) for part in wanted]
            waiting = group.create_task(announce(wanted[-1]))
            await stop.wait()
            waiting.cancel()
            print("\nEnding; what runs may finish. Ctrl-C once more: at once.", flush=True)
            # The last first: a worker that finishes its essays still needs the model.
            for task in reversed(running):
                task.cancel()
                await asyncio.wait({task})
    except* (Ended, PenstockError) as ended:
        sys.exit(str(ended.exceptions[0]))
    print("All has ended.", flush=True)


@asynccontextmanager
async def opened(app: Penstock) -> AsyncIterator[None]:
    try:
        await app.engine()
        read_roots(app.settings)
        yield
    finally:
        await app.close()


async def announce(web: Part) -> None:
    await ready(web)
    print(f"Practise at http://{HOST}:{web.port}", flush=True)
    print("Ctrl-C ends everything.", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
