"""Everything in one go:  python examples/studio [--model simulated|URL] [--port 8020]

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

from parts import HOST, Ended, Part, free_port, is_free, keep_running, ready  # noqa: E402
from penstock import Penstock, PenstockError  # noqa: E402
from penstock.security.roots import read_roots  # noqa: E402

PORT = 8020
LAST_PORT = 65_535
SIMULATED = "simulated"
# A picture takes about so long: eight of them can be watched.
MODEL_SECONDS = 2.0
MODEL_SLOTS = 4
# What is open when the web app is told to end may take so long.
LEAVE_SECONDS = "8"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python examples/studio", description="An image studio sold for credits."
    )
    parser.add_argument(
        "--model",
        default=os.environ.get("IMAGE_URL") or SIMULATED,
        metavar="simulated|URL",
        help="one that draws landscapes, or the address of an OpenAI-compatible server",
    )
    parser.add_argument("--port", default=os.environ.get("STUDIO_PORT") or str(PORT))
    given = parser.parse_args()
    if not given.port.isdecimal() or not 0 < int(given.port) <= LAST_PORT:
        parser.error(f"--port is {given.port!r}; it may be a number from 1 to {LAST_PORT}")
    given.port = int(given.port)
    if given.model != SIMULATED and "://" not in given.model:
        parser.error(f"--model is {given.model!r}; it may be simulated, or http://…")
    if not is_free(given.port):
        sys.exit(f"Port {given.port} is taken. Give another one with --port.")
    return given


def model_part(model: str) -> Part | None:
    """The model to start; None for one that runs already. Tells the others where it is."""
    if model != SIMULATED:
        os.environ["IMAGE_URL"] = model
        return None
    port, control = free_port(), free_port()
    os.environ["IMAGE_URL"] = f"http://{HOST}:{port}"
    os.environ["MODEL_CONTROL_URL"] = f"http://{HOST}:{control}"
    seconds = os.environ.get("MODEL_SECONDS") or f"{MODEL_SECONDS:g}"
    words = ["penstock", "model", "--port", str(port), "--control", str(control)]
    words += ["--latency", seconds, "--slots", str(MODEL_SLOTS)]
    return Part("model", tuple(words), port)


def programs(model: str, port: int) -> list[Part]:
    first = model_part(model)
    serve = ("uvicorn", "studio.app:web", "--port", str(port), "--no-access-log")
    quietly = ("--log-level", "warning", "--timeout-graceful-shutdown", LEAVE_SECONDS)
    found = [
        Part("worker", ("penstock", "worker", "studio.jobs:app")),
        Part("web app", (*serve, *quietly), port),
    ]
    return found if first is None else [first, *found]


async def main() -> None:
    given = arguments()
    wanted = programs(given.model, given.port)
    code = os.environ.get("STUDIO_OPERATOR_CODE") or secrets.token_urlsafe(9)
    os.environ["STUDIO_OPERATOR_CODE"] = code
    # One secret for every start of the web app, or a restart would sign everybody out.
    os.environ["STUDIO_SECRET"] = os.environ.get("STUDIO_SECRET") or secrets.token_hex(32)
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
        # that is not there, or a secret that is missing.
        from studio.jobs import app

        env = dict(os.environ)
        async with opened(app), asyncio.TaskGroup() as group:
            running = [group.create_task(keep_running(part, env, hurry)) for part in wanted]
            waiting = group.create_task(announce(wanted[-1], code))
            await stop.wait()
            waiting.cancel()
            print("\nEnding; what runs may finish. Ctrl-C once more: at once.", flush=True)
            # The last first: a worker that finishes its job still needs the model.
            for task in reversed(running):
                task.cancel()
                await asyncio.wait({task})
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


async def announce(web: Part, code: str) -> None:
    await ready(web)
    print(f"The studio:       http://{HOST}:{web.port}", flush=True)
    print(f"As its operator:  http://{HOST}:{web.port}/operator?code={code}", flush=True)
    print("Ctrl-C ends everything.", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
