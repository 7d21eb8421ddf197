"""A caller in Python, in its own process: `kind.using(…).submit(…)`, with keys."""

import asyncio
import os
import random
import signal

from fire.app import FOLDER, app
from fire.clients.wanted import Wanted, wanted
from fire.logs import Ack, Fate, Log
from penstock.db.connections.listener import DATABASE_UNAVAILABLE
from penstock.errors import Refused

NAME = "submitter"
IDLE = (0.1, 0.8)
PAUSE = (0.05, 0.5)
LAST_SECONDS = 40.0

_log = Log(FOLDER)


async def main() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    chance = random.Random(f"{os.environ['FIRE_SEED']} {NAME} {os.getpid()}")
    brief = bool(os.environ["FIRE_BRIEF"])
    for one in wanted(f"{NAME}-{os.getpid()}", chance, brief=brief):
        if stop.is_set():
            break
        await _submit(one, chance, stop)
        await asyncio.sleep(chance.uniform(*IDLE))
    await app.close()


async def _submit(one: Wanted, chance: random.Random, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    fate: Fate = "doubt"
    job = code = None
    doubt = False
    ends: float | None = None
    ready = app.kinds[one.kind].using(account=one.account, idempotency_key=one.tag)
    while ends is None or loop.time() < ends:
        if stop.is_set():
            ends = ends or loop.time() + LAST_SECONDS
        try:
            ticket = await ready.submit(**one.payload)
        except Refused as refusal:
            if refusal.code == "idempotency_in_progress":
                await asyncio.sleep(chance.uniform(*PAUSE))
                continue
            fate, code = "doubt" if doubt else "refused", refusal.code
            break
        except DATABASE_UNAVAILABLE:
            doubt = True
            await asyncio.sleep(chance.uniform(*PAUSE))
            continue
        fate, job = "accepted", str(ticket.id)
        break
    _log.write(
        Ack(
            client=NAME,
            tag=one.tag,
            kind=one.kind,
            fate=fate,
            key=one.tag,
            account=one.account,
            job=job,
            code=code,
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
