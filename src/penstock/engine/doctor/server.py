"""The server below: whether it is one to rely on."""

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

from penstock.db.adapters.caller_connection import Fetch
from penstock.db.connections.display_address import place
from penstock.db.connections.pooler import is_pooled
from penstock.engine.doctor.finding import Finding, count

OLDEST, NEWEST = 15, 18
SLOW_MS = 50
CLOCK_SECONDS = 2
FULL_SHARE = 0.8
LONG_MINUTES = 5
# Below the first a day's work may fill it; below the second Postgres stops soon.
LITTLE_BYTES, NEXT_TO_NOTHING_BYTES = 2 * 1024**3, 256 * 1024**2

_LOST = {
    "fsync": "a crash of the machine can destroy the whole database",
    "full_page_writes": "a crash of the machine can leave half-written pages in the database",
    "synchronous_commit": "jobs and results of the last second can be lost in a crash",
}


async def connection(fetch: Fetch, dsn: str) -> Finding:
    """It was reached; what is left is how far away it is."""
    trips = []
    for _ in range(3):
        begun = time.perf_counter()
        await fetch("select 1", ())
        trips.append(time.perf_counter() - begun)
    # begin, the question itself (asked in two messages), commit
    trip_ms = min(trips) * 1000 / 4
    message = f"{place(dsn)} answers in {trip_ms:.1f} ms"
    if trip_ms <= SLOW_MS:
        return Finding("connection", "ok", message)
    return Finding(
        "connection", "warning", message, "Run workers nearer to the database: each job asks it."
    )


async def version(fetch: Fetch) -> Finding:
    [row] = await fetch(
        "select current_setting('server_version') as name,"
        " current_setting('server_version_num')::integer / 10000 as major",
        (),
    )
    said = f"Postgres {row['name']}"
    if row["major"] < OLDEST:
        return Finding(
            "version", "bad", f"{said} is too old", f"Penstock needs {OLDEST} to {NEWEST}."
        )
    if row["major"] > NEWEST:
        return Finding(
            "version",
            "warning",
            f"{said} is newer than what Penstock was tested with ({NEWEST})",
            f"Upgrade Penstock, or run Postgres {NEWEST}.",
        )
    return Finding("version", "ok", said)


async def pooler(dsn: str) -> Finding:
    if not await is_pooled(dsn):
        return Finding("pooler", "ok", "no transaction pooler in between")
    return Finding(
        "pooler",
        "warning",
        "a pooler that gives each transaction another session is in between: apps may submit"
        " through it, workers cannot run",
        "Give workers the address of the server itself, or of a pool with pool_mode = session.",
    )


async def clocks(fetch: Fetch) -> Finding:
    before = datetime.now(UTC)
    [row] = await fetch("select clock_timestamp() as now", ())
    after = datetime.now(UTC)
    apart = (row["now"] - (before + (after - before) / 2)).total_seconds()
    if abs(apart) <= CLOCK_SECONDS:
        return Finding("clock", "ok", "this machine and the server agree")
    return Finding(
        "clock",
        "warning",
        f"the server's clock is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} this"
        " machine's; jobs follow the server's",
        "Set both by NTP.",
    )


async def durability(fetch: Fetch) -> Finding:
    rows = await fetch(
        "select name, current_setting(name) as value"
        " from unnest(array['fsync', 'full_page_writes', 'synchronous_commit']) name",
        (),
    )
    off = [row["name"] for row in rows if row["value"] == "off"]
    if not off:
        return Finding("durability", "ok", "what is committed is on disk")
    return Finding(
        "durability",
        "warning" if off == ["synchronous_commit"] else "bad",
        "; ".join(f"{name} is off: {_LOST[name]}" for name in off),
        f"Set {' and '.join(f'{name} = on' for name in off)}.",
    )


async def connections(fetch: Fetch) -> Finding:
    [row] = await fetch(
        "select sum(numbackends)::integer as used,"
        " current_setting('max_connections')::integer"
        " - current_setting('superuser_reserved_connections')::integer as most"
        " from pg_catalog.pg_stat_database",
        (),
    )
    message = f"{row['used']} of {row['most']} are in use"
    if row["used"] < FULL_SHARE * row["most"]:
        return Finding("connections", "ok", message)
    return Finding(
        "connections",
        "warning",
        message,
        "Raise max_connections, or end programs that hold connections and do nothing.",
    )


def disk(home: Path | None) -> Finding:
    if home is None:
        return Finding("disk", "ok", "the server's disk cannot be seen from here")
    free = shutil.disk_usage(home).free
    message = f"{_size(free)} free for {home}"
    if free > LITTLE_BYTES:
        return Finding("disk", "ok", message)
    return Finding(
        "disk",
        "warning" if free > NEXT_TO_NOTHING_BYTES else "bad",
        message,
        "Make room, or set PENSTOCK_HOME to a folder elsewhere.",
    )


async def transactions(fetch: Fetch) -> Finding:
    """Of other roles the server tells a plain role nothing; those are not seen."""
    rows = await fetch(
        "select pid, coalesce(nullif(application_name, ''), usename) as who, state,"
        " (extract(epoch from clock_timestamp() - xact_start) / 60)::integer as minutes"
        " from pg_catalog.pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
        " and backend_type = 'client backend'"
        " and xact_start < clock_timestamp() - make_interval(mins => $1)"
        " order by xact_start",
        (LONG_MINUTES,),
    )
    if not rows:
        return Finding("transactions", "ok", f"none open for more than {LONG_MINUTES} minutes")
    named = [
        f"process {row['pid']} ({row['who']}, {row['state']}) for {row['minutes']} min"
        for row in rows[:3]
    ]
    more = f" and {len(rows) - len(named)} more" if len(rows) > len(named) else ""
    return Finding(
        "transactions",
        "warning",
        f"{count(len(rows), 'transaction')} open: {', '.join(named)}{more}."
        " They keep dead rows, which slow down claims",
        f"End them: `select pg_terminate_backend({rows[0]['pid']})`.",
    )


def _size(size: float) -> str:
    for unit in ("MB", "GB"):
        size /= 1024 if unit == "GB" else 1024**2
        if size < 1024:  # noqa: PLR2004  # the next unit
            return f"{size:.0f} {unit}"
    return f"{size / 1024:.1f} TB"
