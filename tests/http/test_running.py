"""`server.running`: signals to an app that mounts the API (the app is a process)."""

import asyncio
import signal
import sys

import pytest

SECONDS = 20
# Its lifespan without a database: this test is only about signals.
APP = """
import asyncio, signal
from contextlib import asynccontextmanager
from types import SimpleNamespace
from starlette.applications import Starlette
from penstock import server

@asynccontextmanager
async def lifespan(api):
    api.state.backend = SimpleNamespace(on_leave=[lambda: print("leaves", flush=True)])
    yield

async def main():
    over = asyncio.Event()
    {handles}
    async with server.running(Starlette(lifespan=lifespan)):
        print("ready", flush=True)
        await over.wait()

asyncio.run(main())
"""
HANDLES = "signal.signal(signal.SIGTERM, lambda *_: over.set())"


@pytest.mark.parametrize(
    ("handles", "output", "code"), [(HANDLES, b"leaves\n", 0), ("", b"", -signal.SIGTERM)]
)
async def test_a_signal_stops_an_app_with_or_without_a_handler(
    handles: str, output: bytes, code: int
) -> None:
    """An app without a handler is stopped, as without the mounted API."""
    app = await asyncio.create_subprocess_exec(
        sys.executable, "-c", APP.format(handles=handles), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(SECONDS):
            assert app.stdout
            assert await app.stdout.readline() == b"ready\n"
            app.send_signal(signal.SIGTERM)
            assert (await app.stdout.read(), await app.wait()) == (output, code)
    finally:
        if app.returncode is None:
            app.kill()
