"""Runs programs side by side: starts them, restarts them when they die, stops them in order."""

import asyncio
import contextlib
import socket
import sys
import time
from dataclasses import dataclass

HOST = "127.0.0.1"
# A program that exits sooner than this, or with the code for wrong usage, cannot work: a restart
# would not help.
TOO_SOON_SECONDS = 3.0
WRONG_USE = 2
AGAIN_SECONDS = 1.0
READY_SECONDS = 60.0
END_SECONDS = 40.0
HURRY_SECONDS = 5.0
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    words: tuple[str, ...]
    port: int | None = None


class PartFailed(Exception):  # noqa: N818  # named for what happened
    """A part exited and cannot be restarted, or never answered."""


async def keep_running(part: Part, env: dict[str, str], hurry: asyncio.Event) -> None:
    """Start a part, and restart it whenever it dies; on cancellation, stop it gracefully."""
    while True:
        started = time.monotonic()
        # In its own process group: Ctrl-C reaches only this process, which signals the parts once.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *part.words,
            env=env,
            process_group=0,
            stdout=asyncio.subprocess.DEVNULL,
        )
        print(f"The {part.name} is process {process.pid}.", flush=True)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await _end(process, hurry)
            raise
        soon = time.monotonic() - started < TOO_SOON_SECONDS
        if code == WRONG_USE or (code >= 0 and soon):
            raise PartFailed(f"The {part.name} cannot work (exit code {code}); see above.")
        print(f"The {part.name} died (exit code {code}) and is restarted.", flush=True)
        await asyncio.sleep(AGAIN_SECONDS)


async def _end(process: asyncio.subprocess.Process, hurry: asyncio.Event) -> None:
    """Terminate it and let it finish its work; in a hurry terminate it again; then kill it."""
    gone = asyncio.ensure_future(process.wait())
    hurried = asyncio.ensure_future(hurry.wait())
    # The process may have exited already.
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        limit = END_SECONDS
        await asyncio.wait({gone, hurried}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            process.terminate()
            await asyncio.wait({gone}, timeout=HURRY_SECONDS)
        if not gone.done():
            process.kill()
    hurried.cancel()
    await gone


async def ready(part: Part) -> None:
    """Wait until it accepts connections."""
    try:
        async with asyncio.timeout(READY_SECONDS):
            while True:
                try:
                    _, writer = await asyncio.open_connection(HOST, part.port)
                except OSError:
                    await asyncio.sleep(POLL_SECONDS)
                else:
                    writer.close()
                    return
    except TimeoutError:
        raise PartFailed(f"The {part.name} did not answer within {READY_SECONDS:g} s.") from None


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
