"""The image model: one call for one picture; and the operator's way to let one fail."""

import asyncio
import base64
import binascii
import math
import os
import zlib

import httpx

from penstock import PenstockError
from penstock.failures.classify import classify
from penstock.failures.verdict import Charge
from studio.errors import Wrong
from studio.kinds import IMAGES_PER_JOB, JOB_SECONDS, Quality

# An OpenAI-compatible server. `penstock model` is one, and takes commands at its control port.
IMAGE_URL = (os.environ.get("IMAGE_URL") or "http://127.0.0.1:11434").rstrip("/")
IMAGE_MODEL = os.environ.get("IMAGE_MODEL") or "studio-1"
API_KEY = os.environ.get("IMAGE_API_KEY") or None
CONTROL_URL = os.environ.get("MODEL_CONTROL_URL") or None
SIZE = "256x256"
COMMAND_SECONDS = 5.0
# Of a job, for all that is not waiting for the model.
SPARE_SECONDS = 20

_PNG = b"\x89PNG\r\n\x1a\n"


def _call_seconds(said: str) -> float:
    """A job has the time for all of its pictures, however slow each of them is."""
    most = (JOB_SECONDS - SPARE_SECONDS) // IMAGES_PER_JOB
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= most:
        raise PenstockError(
            f"IMAGE_TIMEOUT is {said!r}; it may be a number up to {most} (seconds)."
        )
    return seconds


CALL_SECONDS = _call_seconds(os.environ.get("IMAGE_TIMEOUT") or "60")


class NotDrawn(Exception):  # noqa: N818  # named for what happened
    """There is no such picture, and asking again would not help: `refused` or `broken`."""


async def draw(order: str, quality: Quality, key: str) -> bytes:
    """A picture as PNG; `NotDrawn` where there is none.

    A model that is away, busy, broken or locked says nothing about this picture: that is raised as
    it is, and Penstock knows what to do: wait for the model, stop the queue, or try again.
    """
    body = {
        "model": IMAGE_MODEL,
        "prompt": order,
        "n": 1,
        "size": SIZE,
        "quality": quality,
        "response_format": "b64_json",
        # The same in each attempt, another one for each picture.
        "seed": zlib.crc32(key.encode()),
    }
    headers = {"Idempotency-Key": key}
    if API_KEY is not None:
        headers["Authorization"] = f"Bearer {API_KEY}"
    # Around the whole call: the client's own limit starts anew with every byte that arrives.
    async with (
        asyncio.timeout(CALL_SECONDS),
        httpx.AsyncClient(timeout=CALL_SECONDS, trust_env=False) as client,
    ):
        reply = await client.post(f"{IMAGE_URL}/v1/images/generations", json=body, headers=headers)
    if _is_refusal(reply):
        raise NotDrawn("refused")
    reply.raise_for_status()
    return _picture(reply)


def charge_of(error: Exception) -> Charge:
    """What a failure costs the job, in Penstock's judgement."""
    return classify(error).charge


def _is_refusal(reply: httpx.Response) -> bool:
    if not reply.is_client_error:
        return False
    try:
        return reply.json()["error"]["code"] in ("content_policy_violation", "moderation_blocked")
    except (ValueError, KeyError, TypeError):
        return False


def _picture(reply: httpx.Response) -> bytes:
    try:
        png = base64.b64decode(reply.json()["data"][0]["b64_json"], validate=True)
    except (ValueError, KeyError, TypeError, IndexError, binascii.Error):
        raise NotDrawn("broken") from None
    if not png.startswith(_PNG):
        raise NotDrawn("broken")
    return png


async def order_failure(fault: str) -> None:
    """Make the next picture fail."""
    if CONTROL_URL is None:
        raise Wrong(None, "This model takes no commands from here.", status=409)
    wanted = {"fault": fault, "times": 1, "path": "/v1/images"}
    try:
        async with httpx.AsyncClient(timeout=COMMAND_SECONDS, trust_env=False) as client:
            (await client.post(f"{CONTROL_URL}/_order", json=wanted)).raise_for_status()
    except httpx.HTTPError:
        raise Wrong(None, "The model takes no commands at the moment.", status=502) from None
