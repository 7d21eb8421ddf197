"""Connections as Penstock wants them: named for people who look at the server, and JSON decoded."""

import functools
import json

import asyncpg

# How long to wait for a server that neither answers nor refuses.
CONNECT_SECONDS = 10.0

# Not NaN and Infinity, which Postgres would refuse later and less clearly.
_encode = functools.partial(json.dumps, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


async def prepare(conn: asyncpg.Connection) -> None:
    """Read and write `json` and `jsonb` as Python values."""
    for name in ("json", "jsonb"):
        await conn.set_type_codec(name, schema="pg_catalog", encoder=_encode, decoder=json.loads)


async def _leave(conn: asyncpg.Connection) -> None:
    """Nothing: our calls are single statements that leave no state in the session.

    The driver's own reset costs a round trip after every call, about a tenth of a claim.
    """


async def open_pool(
    dsn: str, *, name: str = "penstock", min_size: int = 1, max_size: int = 10
) -> asyncpg.Pool:
    """Open a pool whose connections show as `name` in pg_stat_activity.

    No statement is timed out here: a claim or a finish is bounded in SQL, and a migration or an
    export may take what it takes. No other session setting either: poolers in front of Postgres
    refuse a connection that begins with settings they do not know.
    """
    return await asyncpg.create_pool(
        dsn,
        min_size=min_size,
        max_size=max_size,
        timeout=CONNECT_SECONDS,
        server_settings={"application_name": name},
        init=prepare,
        reset=_leave,
    )
