"""The function for the demonstration: whether it is available, and its orders."""

import asyncio
import os
from typing import Any
from urllib.parse import urlsplit

import httpx

from marking.errors import Wrong

# The control port of `marking.function`; without one, the page has no buttons.
CONTROL_URL = os.environ.get("MARKING_CONTROL_URL") or None
POLL_SECONDS = 1.0
COMMAND_SECONDS = 5.0

ORDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "stop": ("/_stop", {}),
    "start": ("/_start", {}),
    "fail": ("/_order", {"fail": 1, "retryable": False}),
    "repeat": ("/_order", {"repeat": 2}),
    "once": ("/_order", {"repeat": 1}),
}


async def is_there() -> bool:
    """Whether it accepts connections; no request is sent."""
    parts = urlsplit(os.environ["MARKING_FUNCTION_URL"])
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(POLL_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:
        return False
    writer.close()
    return True


async def tell(order: str) -> None:
    if CONTROL_URL is None:
        raise Wrong(None, "This function takes no commands from here.", status=409)
    if order not in ORDERS:
        raise Wrong("order", f"order may be {', '.join(ORDERS)}.", status=404)
    path, body = ORDERS[order]
    try:
        async with httpx.AsyncClient(timeout=COMMAND_SECONDS, trust_env=False) as client:
            (await client.post(f"{CONTROL_URL}{path}", json=body)).raise_for_status()
    except httpx.HTTPError:
        raise Wrong(None, "The function takes no commands at the moment.", status=502) from None
