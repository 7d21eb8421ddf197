"""The model for the teacher's page: whether it is available, and how to stop and start it."""

import asyncio
import os
from urllib.parse import urlsplit

import httpx

from feedback.errors import Wrong

# The control address of `penstock model`. A real Ollama has none; then the page has no buttons.
CONTROL_URL = os.environ.get("MODEL_CONTROL_URL") or None
POLL_SECONDS = 1.0
COMMAND_SECONDS = 5.0


async def is_there() -> bool:
    """Whether it accepts connections; no request is sent, because the model may be busy."""
    parts = urlsplit(os.environ["OLLAMA_URL"])
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(POLL_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:
        return False
    writer.close()
    return True


async def switch(*, on: bool) -> None:
    if CONTROL_URL is None:
        raise Wrong(None, "Diese KI lässt sich von hier aus nicht schalten.", status=409)
    try:
        async with httpx.AsyncClient(timeout=COMMAND_SECONDS, trust_env=False) as client:
            reply = await client.post(f"{CONTROL_URL}/{'_start' if on else '_stop'}")
            reply.raise_for_status()
    except httpx.HTTPError:
        raise Wrong(None, "Die KI lässt sich gerade nicht schalten.", status=502) from None
