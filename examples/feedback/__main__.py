"""Everything in one go:  python examples/feedback [--model simulated|real|URL] [--port 8010]

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

PORT = 8010
SIMULATED, REAL = "simulated", "real"
# About four seconds for an answer: a class of fifty waits three minutes and a half.
MODEL_SECONDS = 4.0
MODEL_TOKENS = 70
# What `make model` fetches, and as Ollama's library calls it.
REAL_NAME = "smollm2:135m"
SMALL_MODEL = FOLDER / "small_model.toml"
# F7 of the requirements: a worker that begins afresh now and then cannot grow for ever.
RECYCLE_AFTER = "1000"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python examples/feedback", description="Meine Aufgaben: feedback from one model."
    )
    parser.add_argument(
        "--model",
        default=os.environ.get("OLLAMA_URL") or SIMULATED,
        metavar="simulated|real|URL",
        help="a stand-in, a small real one (after `make model`), or the address of an Ollama",
    )
    parser.add_argument("--port", type=int, default=int(os.environ.get("FEEDBACK_PORT") or PORT))
    given = parser.parse_args()
    if given.model not in (SIMULATED, REAL) and "://" not in given.model:
        parser.error(f"--model is {given.model!r}; it may be simulated, real, or http://…")
    if not is_free(given.port):
        sys.exit(f"Port {given.port} is taken. Give another one with --port.")
    return given


def model_part(model: str) -> Part | None:
    """The model to start; None for one that runs already. Tells the others where it is."""
    if "://" in model:
        os.environ["OLLAMA_URL"] = model
        return None
    port, control = free_port(), free_port()
    os.environ["OLLAMA_URL"] = f"http://{HOST}:{port}"
    os.environ["MODEL_CONTROL_URL"] = f"http://{HOST}:{control}"
    words = ["penstock", "model", "--port", str(port), "--control", str(control)]
    if model == REAL:
        os.environ["OLLAMA_MODEL"] = REAL_NAME
        os.environ["FEEDBACK_CONFIG"] = os.environ.get("FEEDBACK_CONFIG") or str(SMALL_MODEL)
        words += ["--real", "--name", REAL_NAME]
    else:
        seconds = float(os.environ.get("MODEL_SECONDS") or MODEL_SECONDS)
        pace = MODEL_TOKENS / (seconds * 0.8)
        words += ["--latency", f"{seconds * 0.2:g}", "--tokens", str(MODEL_TOKENS)]
        words += ["--tokens-per-second", f"{pace:g}"]
    return Part("model", tuple(words), port)


def programs(model: str, port: int) -> list[Part]:
    first = model_part(model)
    config = os.environ.get("FEEDBACK_CONFIG") or str(FOLDER / "penstock.toml")
    serve = ("uvicorn", "feedback.app:web", "--port", str(port), "--no-access-log")
    found = [
        Part("worker", ("penstock", "worker", config, "--recycle-after", RECYCLE_AFTER)),
        Part("web app", (*serve, "--log-level", "warning"), port),
    ]
    return found if first is None else [first, *found]


async def main() -> None:
    given = arguments()
    wanted = programs(given.model, given.port)
    code = os.environ.get("FEEDBACK_TEACHER_CODE") or secrets.token_urlsafe(9)
    os.environ["FEEDBACK_TEACHER_CODE"] = code
    # One secret for every start of the web app, or a restart would sign everybody out.
    os.environ["FEEDBACK_SECRET"] = os.environ.get("FEEDBACK_SECRET") or secrets.token_hex(32)
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
        # that is not there or has no PENSTOCK_SECRET, or a model that the queue may not call.
        from feedback.jobs import app

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
        await app.engine()
        read_roots(app.settings)
        yield
    finally:
        await app.close()


async def announce(web: Part, code: str) -> None:
    await ready(web)
    print(f"Meine Aufgaben: http://{HOST}:{web.port}", flush=True)
    print(f"Die Klasse:     http://{HOST}:{web.port}/klasse?code={code}", flush=True)
    print("Ctrl-C ends everything.", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
