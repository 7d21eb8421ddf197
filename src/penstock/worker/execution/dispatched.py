"""Starts that go on outside: handed over before the function is called, taken back if none took it.

From the hand-over on the token is the fence, not the worker: what the worker says then counts only
until a callback was there first.
"""

import asyncio
import logging
from contextlib import suppress

from penstock.db.connections.listener import AWAY
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Claimed, Told
from penstock.engine.states import JobStatus
from penstock.errors import Misconfigured, NotFound
from penstock.models.job_protocol import Handover
from penstock.security import callback_token
from penstock.worker.execution.attempt import Start
from penstock.worker.handlers.control import LeaseLost, whereabouts

AWAY_SECONDS = 0.5
BUSY_SECONDS = 0.05

_log = logging.getLogger("penstock.worker")


async def hand_over(start: Start) -> Handover:
    """Let the start go on outside, under a token of its own."""
    if start.handler.outside is None:
        raise Misconfigured("a job can be handed over where an app runs it: with its worker")
    outside, claimed, desk = start.handler.outside(), start.claimed, start.desk
    token = callback_token.make(outside.roots, claimed.id, claimed.attempt)
    doubt = False
    while start.token is None:
        if start.ended:
            raise LeaseLost
        try:
            # What it said so far is fenced by the worker, and would come too late.
            if desk.has(start):
                await desk.flush()
            verdict = await desk.engine.callbacks.hand_over(start.worker, claimed, token)
            if verdict == "stale" and doubt and await _awaits(desk.engine, claimed):
                verdict = "done"
        except AWAY:
            doubt = True  # it may have been done, and only the answer was lost
            await asyncio.sleep(AWAY_SECONDS)
            continue
        if verdict == "stale":
            start.stop("lost")
            raise LeaseLost
        if verdict == "busy":
            await asyncio.sleep(BUSY_SECONDS)
        else:
            start.token = token
            desk.hints.tell()
    return Handover(token, outside.callback_url(claimed.id), claimed.timeout_at)


async def _awaits(engine: Engine, start: Claimed) -> bool:
    """Whether this start awaits its callback: under its token then, since there is no other."""
    with suppress(NotFound):
        seen = await engine.jobs.read(start.id)
        return (seen.status, seen.attempt) == (JobStatus.AWAITING, start.attempt)
    return False


async def take_back(engine: Engine, start: Start, told: Told) -> None:
    """End a start that was handed over and that nobody took, however long the database is away."""
    assert start.token is not None  # noqa: S101  # handed over
    while True:
        try:
            verdict = await engine.callbacks.take_back(told, start.token, wait=start.patience)
        except AWAY:
            await asyncio.sleep(AWAY_SECONDS)
            continue
        except Exception as error:  # noqa: BLE001  # it awaits then, and its time-out ends it
            _log.warning("a job could not be taken back: %s", whereabouts(error))
            return
        if verdict == "stale":
            _log.info(
                "a job was not taken back: its callback came first",
                extra={"job": told.job_id, "attempt": told.attempt},
            )
        if verdict != "busy":
            return
        start.busies += 1
        await asyncio.sleep(BUSY_SECONDS)
