"""Callers in plain SQL: a submit is part of their own transaction, committed or rolled back."""

import asyncio
import json
import random
from dataclasses import dataclass, field

import asyncpg

from fire.clients.http import IDLE
from fire.clients.wanted import Known, Wanted, wanted
from fire.logs import Ack, Fate
from fire.world import World
from support.broken_connection import Cut, Wire

ROLL_BACK = 0.15
CUT = 0.03
THOUGHT = (0.0, 0.2)
# The server has no free connection, or cancelled the statement: nothing was committed.
_LATER = ("53300", "40001", "40P01", "55P03", "57014", "57P")


@dataclass
class SqlCaller:
    world: World
    name: str
    known: Known
    stop: asyncio.Event
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = self.world.chance(self.name)
        self._wire = Wire(self.world.app_dsn)

    async def submit(self) -> None:
        for one in wanted(self.name, self.chance, brief=self.world.brief):
            await asyncio.sleep(self.chance.uniform(*IDLE))
            if self.stop.is_set():
                return
            await self._submit(one)

    async def _submit(self, one: Wanted) -> None:
        fate: Fate = "rolled_back"
        code = job = None
        try:
            async with self._wire.open() as conn:
                transaction = conn.transaction()
                await transaction.start()
                await conn.execute("insert into public.fire_note (tag) values ($1)", one.tag)
                made = await conn.fetchval(
                    "select penstock.submit_job($1, $2, account => $3)",
                    *(one.kind, one.payload, one.account),
                )
                await asyncio.sleep(self.chance.uniform(*THOUGHT))
                luck = self.chance.random()
                if luck < ROLL_BACK:
                    await transaction.rollback()
                elif luck < ROLL_BACK + CUT:
                    self._wire.cut()
                else:
                    fate = "doubt"
                    await transaction.commit()
                    fate, job = "accepted", made["id"]
        except Cut:
            pass
        except asyncpg.PostgresError as error:
            code = str(error.sqlstate)
            if code.startswith("PS"):
                fate, code = "refused", json.loads(error.detail or "{}").get("code")
            elif not code.startswith(_LATER):
                raise
            self._wire.cut()
        if job is not None:
            self.known.jobs.append((job, one.tag))
        self.world.log.write(
            Ack(
                client=self.name,
                tag=one.tag,
                kind=one.kind,
                fate=fate,
                account=one.account,
                job=job,
                code=code,
            )
        )

    async def close(self) -> None:
        self._wire.cut()
