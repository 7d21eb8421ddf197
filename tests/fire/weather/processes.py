"""Processes that die, are suspended, stop, or have a wrong clock."""

import asyncio
import os
import random
import signal
from pathlib import Path

from fire.weather.fault import Began, Missed, lasts, one_of
from fire.world import APIS, WORKERS, World

LEASE_SECONDS = 15.0
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
SKEWS = ("+1h", "-1h", "+1d", "-1d", "+90s", "-20s")


async def kill_worker(world: World, chance: random.Random, began: Began) -> None:
    await _kill(world, chance, began, one_of(world, chance, WORKERS), "worker")


async def kill_api(world: World, chance: random.Random, began: Began) -> None:
    await _kill(world, chance, began, one_of(world, chance, APIS), "api")


async def _kill(world: World, chance: random.Random, began: Began, name: str, what: str) -> None:
    child = world.children[name]
    with world.holding(name):
        async with world.kept_stopped(name):
            pid = child.pid
            await asyncio.to_thread(child.kill)
            began(**{what: name, "pid": pid})
            await lasts(world, chance, 0, 6, brief=2)


async def pause_worker(world: World, chance: random.Random, began: Began) -> None:
    """Suspend it for longer than its lease; it continues without knowing."""
    name = one_of(world, chance, WORKERS)
    seconds = LEASE_SECONDS + chance.uniform(1, 8)
    with world.holding(name):
        child = world.children[name]
        child.signal(signal.SIGSTOP)
        began(worker=name, pid=child.pid, seconds=seconds)
        try:
            await asyncio.sleep(seconds)
        finally:
            child.signal(signal.SIGCONT)


async def pause_worker_briefly(world: World, chance: random.Random, began: Began) -> None:
    """Suspend it for less than the lease: it keeps its jobs."""
    name = one_of(world, chance, WORKERS)
    with world.holding(name):
        child = world.children[name]
        child.signal(signal.SIGSTOP)
        began(worker=name, pid=child.pid)
        try:
            await lasts(world, chance, 1, 8, brief=3)
        finally:
            child.signal(signal.SIGCONT)


async def drain_worker(world: World, chance: random.Random, began: Began) -> None:
    name = one_of(world, chance, WORKERS)
    child = world.children[name]
    with world.holding(name):
        async with world.kept_stopped(name):
            began(worker=name, pid=child.pid)
            await asyncio.to_thread(child.stop)


async def stop_api(world: World, chance: random.Random, began: Began) -> None:
    name = one_of(world, chance, APIS)
    child = world.children[name]
    with world.holding(name):
        async with world.kept_stopped(name):
            began(api=name, pid=child.pid)
            await asyncio.to_thread(child.stop)


async def restart_everything(world: World, chance: random.Random, began: Began) -> None:
    """Kill all at once, like a power failure; they are started in any order."""
    names = [*WORKERS, *APIS, "model"]
    if world.held:
        raise Missed
    with world.holding(*names, "postgres", "receiver"):
        world.gone |= set(names)
        try:
            workers = [{"worker": name, "pid": world.children[name].pid} for name in WORKERS]
            for name in names:
                world.children[name].signal(signal.SIGKILL)
            began(workers=workers)
            await asyncio.to_thread(world.postgres.kill)
            for name in names:
                await asyncio.to_thread(world.children[name].kill)
            await lasts(world, chance, 0, 3, brief=1)
        finally:
            order = [*names, "postgres"]
            chance.shuffle(order)
            for name in order:
                if name == "postgres":
                    await asyncio.to_thread(world.postgres.start)
                else:
                    world.children[name].start()
                await asyncio.sleep(chance.uniform(0, 0.7))
            world.gone -= set(names)


async def skewed_worker(world: World, chance: random.Random, began: Began) -> None:
    """Run a worker whose clock is wrong by hours, and then a correct one again."""
    name = one_of(world, chance, WORKERS)
    child = world.children[name]
    with world.holding(name):
        async with world.kept_stopped(name):
            await asyncio.to_thread(child.stop)
            skew = chance.choice(SKEWS)
            child.start(
                LD_PRELOAD=str(FAKETIME),
                FAKETIME=skew,
                PENSTOCK_WORKER_ID=f"{name}-skewed",
            )
            began(worker=f"{name}-skewed", pid=child.pid, skew=skew)
            await lasts(world, chance, 8, 25, brief=6)
            if chance.random() < 0.5:
                await asyncio.to_thread(child.stop)
            else:
                await asyncio.to_thread(child.kill)


def may_skew() -> bool:
    return FAKETIME.exists() and os.name == "posix"
