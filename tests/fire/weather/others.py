"""Faults of the model and of the receiver of webhooks; changes by operators."""

import asyncio
import random
from typing import Any

import asyncpg

from fire.weather.database import GONE, QUEUES
from fire.weather.fault import Began, Missed, lasts, one_of
from fire.world import World

# An outage affects every call. A wrong answer counts as a failure, so it affects only some.
OUTAGES: tuple[dict[str, Any], ...] = (
    {"fault": "storm", "form": "seconds", "after": 2},
    {"fault": "storm", "form": "all", "after": 1},
    {"fault": "storm", "code": 503, "form": "none"},
    {"fault": "status", "code": 500},
    {"fault": "status", "code": 503},
    {"fault": "hang"},
    {"fault": "hang_mid"},
    {"fault": "half_body"},
    {"fault": "reset"},
    {"fault": "html", "code": 502},
)
LIES: tuple[dict[str, Any], ...] = (
    {"fault": "html", "code": 200, "chance": 0.2},
    {"fault": "truncated_json", "chance": 0.2},
    {"fault": "empty", "chance": 0.2},
    {"fault": "wrong_usage", "form": "negative", "chance": 0.3},
    {"fault": "delay", "by": 2},
    {"fault": "slow_bytes", "size": 64, "every": 0.02},
)
MODEL = ("model",)


async def model_unavailable(world: World, chance: random.Random, began: Began) -> None:
    """It refuses connections."""
    one_of(world, chance, MODEL)
    with world.holding(*MODEL):
        await world.order("/_stop")
        began()
        await lasts(world, chance, 2, 30, brief=5)
        await world.order("/_start")


async def model_storm(world: World, chance: random.Random, began: Began) -> None:
    """It answers wrongly: 429, 500, silence, half a body, pages of a proxy."""
    one_of(world, chance, MODEL)
    with world.holding(*MODEL):
        order = chance.choice(OUTAGES if chance.random() < 0.7 else LIES)
        await world.order("/_order", **order)
        began(**order)
        await lasts(world, chance, 2, 20, brief=4)
        await world.order("/_heal")


async def model_half_up(world: World, chance: random.Random, began: Began) -> None:
    """Half of the calls are refused as overload; the others could be answered all the time."""
    one_of(world, chance, MODEL)
    with world.holding(*MODEL):
        order = {"fault": "status", "code": 503, "chance": 0.5}
        await world.order("/_order", **order)
        began(**order)
        await lasts(world, chance, 15, 40, brief=5)
        await world.order("/_heal")


async def model_killed(world: World, chance: random.Random, began: Began) -> None:
    one_of(world, chance, MODEL)
    with world.holding(*MODEL):
        child = world.children["model"]
        async with world.kept_stopped("model"):
            pid = child.pid
            await asyncio.to_thread(child.kill)
            began(pid=pid)
            await lasts(world, chance, 0, 8, brief=2)
        await world.until_open("control")


async def receiver_faults(world: World, chance: random.Random, began: Began) -> None:
    one_of(world, chance, ("receiver",))
    with world.holding("receiver"):
        mode = chance.choice(("fail", "hang", "slow", "reset", "flaky"))
        await world.receive(mode)
        began(mode=mode)
        await lasts(world, chance, 3, 20, brief=5)
        await world.receive("ok")


async def edit_limits(world: World, chance: random.Random, began: Began) -> None:
    """Up, down, and back to what the app declares."""
    if "limits" in world.held:
        raise Missed
    with world.holding("limits"):
        plan = chance.choice(("single", "three"))
        queue = chance.choice(("model", "paid", "fast"))
        began(plan=plan, queue=queue)
        for _ in range(chance.randint(2, 5)):
            await _operate(
                world, "select penstock.edit_queue($1, $2)",
                queue, {"concurrency": chance.choice((1, 2, 5, 20))},
            )  # fmt: skip
            await _operate(
                world, "select penstock.edit_plan($1, $2)",
                plan, {"concurrency": chance.choice((1, 2, 6))},
            )  # fmt: skip
            await lasts(world, chance, 0.2, 3, brief=1)
        await _operate(world, "select penstock.reset_queue($1)", queue)
        await _operate(world, "select penstock.reset_plan($1)", plan)


async def pause_queue(world: World, chance: random.Random, began: Began) -> None:
    queue = chance.choice(QUEUES)
    if f"pause {queue}" in world.held:
        raise Missed
    with world.holding(f"pause {queue}"):
        await _operate(world, "select penstock.pause_queue($1, 'weather')", queue)
        began(queue=queue)
        await lasts(world, chance, 1, 10, brief=3)
        await _operate(world, "select penstock.resume_queue($1)", queue)


async def _operate(world: World, statement: str, *arguments: Any) -> None:
    """Repeat like an operator until it succeeds."""
    while True:
        try:
            conn = await world.connect()
        except (*GONE, TimeoutError):
            await asyncio.sleep(0.2)
            continue
        try:
            await conn.execute(statement, *arguments)
        except asyncpg.PostgresError as error:
            # The rows are locked: 409 or 503, try again later.
            if str(error.sqlstate).startswith("PS4") and error.sqlstate != "PS409":
                raise
            await asyncio.sleep(0.5)
        except GONE:
            await asyncio.sleep(0.2)
        else:
            return
        finally:
            conn.terminate()
