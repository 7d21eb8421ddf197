"""Everything in one go:  python examples/essays

Model, worker and web app are processes of their own, as they would be on a server. One that dies
is started again; Ctrl-C ends them all. The database is the one of PENSTOCK_DSN, or an embedded
Postgres under ./.penstock that starts and ends with them.
"""

import asyncio
import os
import secrets
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from penstock import PenstockError
from penstock.providers.roots import read_roots

EXAMPLES = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
# A process that gives up sooner than this cannot work at all: to start it again would not help.
TOO_SOON_SECONDS = 3.0
AGAIN_SECONDS = 1.0
READY_SECONDS = 60.0
END_SECONDS = 40.0
HURRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    words: tuple[str, ...]
    port: int | None = None


class Ended(Exception):  # noqa: N818  # named for what happened
    """A part ended and cannot be started again."""


def parts(web_port: int, model_port: int) -> list[Part]:
    found = [
        Part("worker", ("penstock", "worker", "essays.jobs:app")),
        Part(
            "web",
            (
                "uvicorn",
                "essays.app:web",
                "--port",
                str(web_port),
                "--no-access-log",
                "--log-level",
                "warning",
            ),
            web_port,
        ),
    ]
    if not os.environ.get("AI_SERVICE_URL"):
        found.insert(0, Part("model", ("essays.model", "--port", str(model_port)), model_port))
    return found


async def keep_running(part: Part, env: dict[str, str], hurry: asyncio.Event) -> None:
    """Start a part, and again whenever it dies; cancelled, end it in good order."""
    while True:
        started = time.monotonic()
        # In a group of its own: Ctrl-C reaches us alone, and the parts hear of it once, from us.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *part.words, env=env, process_group=0
        )
        print(f"The {part.name} is process {process.pid}.", flush=True)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await end(process, hurry)
            raise
        killed = code < 0
        if not killed and time.monotonic() - started < TOO_SOON_SECONDS:
            raise Ended(f"The {part.name} ended at once (exit code {code}); see above.")
        print(f"The {part.name} is gone (exit code {code}); it is started again.", flush=True)
        await asyncio.sleep(AGAIN_SECONDS)


async def end(process: asyncio.subprocess.Process, hurry: asyncio.Event) -> None:
    """Ask once, and it may finish what it does; ask again in a hurry; then do not ask."""
    gone = asyncio.ensure_future(process.wait())
    hurried = asyncio.ensure_future(hurry.wait())
    process.terminate()
    await asyncio.wait({gone, hurried}, timeout=END_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not gone.done():
        process.terminate()
        await asyncio.wait({gone}, timeout=HURRY_SECONDS)
    if not gone.done():
        process.kill()
        await gone


async def answers(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


def refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            sys.exit(f"Port {port} is taken. Set ESSAYS_PORT or MODEL_PORT to a free one.")


async def main() -> None:
    web_port = int(os.environ.get("ESSAYS_PORT") or 8000)
    model_port = int(os.environ.get("MODEL_PORT") or 8001)
    env = {
        # One secret for every start of the web app, or a restart would sign everybody out.
        "ESSAYS_SECRET": secrets.token_hex(32),
        "AI_SERVICE_URL": f"http://{HOST}:{model_port}",
        **{name: value for name, value in os.environ.items() if value},
        "PYTHONPATH": os.pathsep.join(filter(None, (str(EXAMPLES), os.environ.get("PYTHONPATH")))),
    }
    wanted = parts(web_port, model_port)
    for part in wanted:
        if part.port is not None:
            refuse_taken(part.port)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    print("Starting the database, the model, a worker and the web app …", flush=True)
    sys.path.insert(0, str(EXAMPLES))
    from essays.jobs import app

    try:
        # Before the parts, so that what cannot be used is said once, in a sentence: a database
        # that is not there, or one of yours without PENSTOCK_SECRET.
        await app.engine()
        read_roots(app.settings)
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(keep_running(part, env, hurry)) for part in wanted]
            waiting = group.create_task(announced(web_port))
            await stop.wait()
            waiting.cancel()
            print("\nEnding; what runs may finish. Ctrl-C once more: at once.", flush=True)
            # The last first: a worker that finishes its essays still needs the model.
            for task in reversed(running):
                task.cancel()
                await asyncio.wait({task})
    except* (Ended, PenstockError) as ended:
        sys.exit(str(ended.exceptions[0]))
    finally:
        await app.close()
    print("All has ended.", flush=True)


async def announced(port: int) -> None:
    try:
        await asyncio.wait_for(answers(port), READY_SECONDS)
    except TimeoutError:
        raise Ended(f"The web app did not answer within {READY_SECONDS:g} s.") from None
    print(f"Practise at http://{HOST}:{port}  (Ctrl-C ends everything)", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
