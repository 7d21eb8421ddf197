"""Settings that a database or a role gives to new sessions, as an operator may have set them."""

import asyncio
import random
from contextlib import suppress

import asyncpg

from fire.weather.database import GONE
from fire.weather.fault import Began, Missed, lasts
from fire.world import DATABASE, LINES, ROLE, World

OF_ROLE = f"role {ROLE} in database {DATABASE}"
# For the app's role only: the sampler, a superuser, has statements that take longer.
TIMES = (
    ("statement_timeout", "2s"),
    ("lock_timeout", "100ms"),
    ("idle_session_timeout", "3s"),
)
SETTINGS = (
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_isolation", "repeatable read"),
    ("default_transaction_deferrable", "on"),
    ("standard_conforming_strings", "off"),
    ("extra_float_digits", "-3"),
    ("TimeZone", "Asia/Kathmandu"),
    ("DateStyle", "German, DMY"),
    ("IntervalStyle", "sql_standard"),
    ("bytea_output", "escape"),
    ("search_path", "nowhere"),
)
SESSIONS = "sessions"


async def odd_settings(world: World, chance: random.Random, began: Began) -> None:
    """Break all connections, so that new sessions begin with the setting; repeat after its end."""
    if SESSIONS in world.held:
        raise Missed
    setting, value = chance.choice((*SETTINGS, *TIMES))
    whom = OF_ROLE
    if (setting, value) in SETTINGS:
        whom = chance.choice((f"database {DATABASE}", OF_ROLE))
    with world.holding(SESSIONS):
        if not await _alter(world, f"alter {whom} set {setting} = '{value}'"):
            raise Missed
        began(whom=whom, setting=setting, value=value)
        _renew(world)
        try:
            await lasts(world, chance, 8, 25, brief=4)
        finally:
            await _until_altered(world, f"alter {whom} reset {setting}")
            _renew(world)


def _renew(world: World) -> None:
    for name in LINES:
        world.relays[name].reset()


async def _until_altered(world: World, statement: str) -> None:
    while True:
        if await _alter(world, statement):
            return
        await asyncio.sleep(0.5)


async def _alter(world: World, statement: str) -> bool:
    """Run as the superuser, in another database: the settings of this one may prevent it."""
    with suppress(*GONE, TimeoutError):
        conn = await asyncpg.connect(world.postgres.dsn, timeout=10)
        try:
            await conn.execute(statement)
        finally:
            conn.terminate()
        return True
    return False
