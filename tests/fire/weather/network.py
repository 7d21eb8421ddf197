"""Connections to Postgres that are cut, silent or slow; and listeners that get nothing."""

import asyncio
import random

from fire.weather.fault import Began, lasts, one_of
from fire.world import APIS, POOLER, SUBMITTER, WORKERS, World


async def cut_off_worker(world: World, chance: random.Random, began: Began) -> None:
    await _cut_off(world, chance, began, one_of(world, chance, WORKERS), "worker")


async def cut_off_api(world: World, chance: random.Random, began: Began) -> None:
    await _cut_off(world, chance, began, one_of(world, chance, (*APIS, SUBMITTER)), "api")


async def _cut_off(world: World, chance: random.Random, began: Began, name: str, what: str) -> None:
    """Drop everything in both directions, without closing connections."""
    relay = world.relays[name]
    with world.holding(name):
        relay.silence()
        began(**{what: name, "pid": world.children[name].pid})
        try:
            await lasts(world, chance, 1, 25, brief=6)
        finally:
            if chance.random() < 0.5:
                relay.reset()
            relay.heal()


async def break_lines(world: World, chance: random.Random, began: Began) -> None:
    """All connections of one process break, and it may connect again at once."""
    name = one_of(world, chance, (*WORKERS, *APIS, SUBMITTER))
    began(process=name)
    for _ in range(chance.randint(1, 3)):
        world.relays[name].reset()
        await asyncio.sleep(chance.uniform(0.05, 1))


async def kill_pooler(world: World, chance: random.Random, began: Began) -> None:
    """Kill PgBouncer with all sessions of its clients, and restart it."""
    name = one_of(world, chance, (POOLER,))
    with world.holding(name):
        async with world.kept_stopped(name):
            pid = world.children[name].pid
            await asyncio.to_thread(world.children[name].kill)
            began(pid=pid)
            await lasts(world, chance, 0, 6, brief=2)


async def slow_network(world: World, chance: random.Random, began: Began) -> None:
    names = world.free((*WORKERS, *APIS, SUBMITTER))
    slow = chance.sample(names, min(len(names), chance.randint(1, 4)))
    seconds = chance.choice((0.01, 0.05, 0.2))
    with world.holding(*slow):
        began(processes=slow, seconds=seconds)
        try:
            for name in slow:
                world.relays[name].delay = seconds
            await lasts(world, chance, 2, 15, brief=4)
        finally:
            for name in slow:
                world.relays[name].delay = 0
