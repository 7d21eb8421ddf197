"""Faults by an app in its own workers: blocked loops, missing kinds, odd exceptions."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import asyncpg

from fire.logs import Ack, Fate
from fire.weather.database import GONE
from fire.weather.fault import Began, Missed, lasts, one_of
from fire.world import WORKERS, World

# Kinds that a version of the app may lack: those of one queue, and one of many in another.
REMOVED = (("quick",), ("one",), ("paint", "sync"), ("quick", "sync"))
BLOCK_SECONDS = (8.0, 14.0)
STROLLS = 20
ODD = ("stop", "stop_async", "mute")


async def blocking_handlers(world: World, chance: random.Random, began: Began) -> None:
    """A handler sleeps in the event loop, for longer than the timeout of the jobs beside it."""
    seconds = round(chance.uniform(*BLOCK_SECONDS), 1)
    if world.brief:
        seconds = BLOCK_SECONDS[0]
    if "loops" in world.held:
        raise Missed
    with world.holding("loops"):
        await submit(world, chance, "stroll", [{"seconds": 1.5}] * STROLLS)
        await submit(world, chance, "block", [{"seconds": seconds}])
        began(seconds=seconds)
        await submit(world, chance, "stroll", [{"seconds": 1.5}] * STROLLS)
        await asyncio.sleep(seconds)


async def removed_kinds(world: World, chance: random.Random, began: Began) -> None:
    """Replace one worker, or all, by a version without some kinds; and back.

    Jobs of these kinds are submitted all the time, and must not delay the others.
    """
    names = [one_of(world, chance, WORKERS)]
    if chance.random() < 0.4 and not set(WORKERS) & world.held:
        names = list(WORKERS)
    without = chance.choice(REMOVED)
    with world.holding(*names):
        async with world.kept_stopped(*names):
            began(names=names, without=without)
            await _restart(world, names, FIRE_WITHOUT=",".join(without))
            await lasts(world, chance, 8, 25, brief=3)
            await asyncio.gather(*(asyncio.to_thread(world.children[name].stop) for name in names))


async def odd_exceptions(world: World, chance: random.Random, began: Began) -> None:
    """Handlers raise exceptions that Python treats specially, or that cannot be printed."""
    kinds = ("odd", "odd_sync")
    began()
    for kind in kinds:
        await submit(world, chance, kind, [{"how": how, "fails": True} for how in ODD])


async def _restart(world: World, names: Sequence[str], **environment: str) -> None:
    await asyncio.gather(*(asyncio.to_thread(world.children[name].stop) for name in names))
    for name in names:
        world.children[name].start(**environment)


async def submit(
    world: World, chance: random.Random, kind: str, payloads: Sequence[dict[str, Any]]
) -> None:
    """Submit like an app, past every relay; a job without an answer is in doubt."""
    conn: asyncpg.Connection | None = None
    with suppress(*GONE, TimeoutError):
        conn = await world.connect(world.app_dsn)
    if conn is None:
        raise Missed
    try:
        for payload in payloads:
            tag = f"weather-{chance.getrandbits(64):x}"
            fate: Fate = "doubt"
            job = None
            with suppress(*GONE, TimeoutError):
                made = await conn.fetchval(
                    "select penstock.submit_job($1, $2)", kind, {"tag": tag} | payload, timeout=10
                )
                fate, job = "accepted", made["id"]
            world.log.write(Ack(client="weather", tag=tag, kind=kind, fate=fate, job=job))
            if job is None:
                return
    finally:
        conn.terminate()
