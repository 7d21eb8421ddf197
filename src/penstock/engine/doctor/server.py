"""The server and its standbys: whether jobs are safe there."""

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg

from penstock.db.adapters.caller_connection import Fetch
from penstock.db.connections.display_address import display_address
from penstock.db.connections.pooler import is_pooled
from penstock.engine.doctor.finding import Finding, Level, Problem, count, judge
from penstock.errors import PenstockError

OLDEST, NEWEST = 15, 18
SLOW_MS = 50
CLOCK_SECONDS = 2
FULL_SHARE = 0.8
LONG_MINUTES = 5
# Below the first limit, a day's work may fill the disk; below the second, Postgres stops soon.
LITTLE_BYTES, NEXT_TO_NOTHING_BYTES = 2 * 1024**3, 256 * 1024**2

_LOST = {
    "fsync": "a crash of the machine can destroy the whole database",
    "full_page_writes": "a crash of the machine can leave half-written pages in the database",
    "synchronous_commit": "jobs and results of the last second can be lost in a crash",
}

# The settings with which a commit waits for less than a standby's disk.
_WEAK = {
    "off": "for nothing",
    "local": "for no standby",
    "remote_write": "until the standby has it in memory, not on its disk",
}
# With these levels a session does not see the server's warning that it gave up waiting.
_DEAF = ("error", "fatal", "panic")


async def connection(fetch: Fetch, dsn: str) -> Finding:
    """The server could be reached; this is how far away it is."""
    trips = []
    for _ in range(3):
        begun = time.perf_counter()
        await fetch("select 1", ())
        trips.append(time.perf_counter() - begun)
    # begin, the query itself (two messages), commit
    trip_ms = min(trips) * 1000 / 4
    message = f"{display_address(dsn)} answers in {trip_ms:.1f} ms"
    advice = "Run workers nearer to the database: each job makes several queries."
    return judge("connection", [Problem(trip_ms > SLOW_MS, "warning", message, advice)], message)


async def version(fetch: Fetch) -> Finding:
    [row] = await fetch(
        "select current_setting('server_version') as name,"
        " current_setting('server_version_num')::integer / 10000 as major",
        (),
    )
    name, major = f"Postgres {row['name']}", row["major"]
    untested = f"{name} is newer than what Penstock was tested with ({NEWEST})"
    return judge(
        "version",
        [
            Problem(
                major < OLDEST,
                "bad",
                f"{name} is too old",
                f"Penstock needs {OLDEST} to {NEWEST}.",
            ),
            Problem(
                major > NEWEST,
                "warning",
                untested,
                f"Upgrade Penstock, or run Postgres {NEWEST}.",
            ),
        ],
        name,
    )


async def pooler(dsn: str) -> Finding:
    return judge(
        "pooler",
        [
            Problem(
                await is_pooled(dsn),
                "warning",
                "a pooler that gives each transaction another session is in between: apps may"
                " submit through it, workers cannot run",
                "Give workers the address of the server itself, or of a pool with"
                " pool_mode = session.",
            )
        ],
        "no transaction pooler in between",
    )


async def clocks(fetch: Fetch) -> Finding:
    before = datetime.now(UTC)
    [row] = await fetch("select clock_timestamp() as now", ())
    after = datetime.now(UTC)
    apart = (row["now"] - (before + (after - before) / 2)).total_seconds()
    message = (
        f"the server's clock is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} this"
        " machine's; jobs follow the server's"
    )
    wrong = abs(apart) > CLOCK_SECONDS
    ok = "this machine and the server agree"
    return judge("clock", [Problem(wrong, "warning", message, "Set both by NTP.")], ok)


async def durability(fetch: Fetch) -> Finding:
    rows = await fetch(
        "select name, current_setting(name) as value"
        " from unnest(array['fsync', 'full_page_writes', 'synchronous_commit']) name",
        (),
    )
    off = [row["name"] for row in rows if row["value"] == "off"]
    return judge(
        "durability",
        [
            Problem(
                off,
                "warning" if off == ["synchronous_commit"] else "bad",
                "; ".join(f"{name} is off: {_LOST[name]}" for name in off),
                f"Set {' and '.join(f'{name} = on' for name in off)}.",
            )
        ],
        "every commit is on disk",
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
    full = row["used"] >= FULL_SHARE * row["most"]
    advice = "Raise max_connections, or stop programs that hold idle connections."
    return judge("connections", [Problem(full, "warning", message, advice)], message)


async def disk(home: Path | None) -> Finding:
    if home is None:
        return Finding("disk", "ok", "the server's disk cannot be checked from here")
    free = shutil.disk_usage(home).free
    message = f"{_size(free)} free for {home}"
    level: Level = "warning" if free > NEXT_TO_NOTHING_BYTES else "bad"
    advice = "Free some space, or set PENSTOCK_HOME to a folder elsewhere."
    return judge("disk", [Problem(free <= LITTLE_BYTES, level, message, advice)], message)


async def transactions(fetch: Fetch) -> Finding:
    """Long transactions. The server hides those of other roles from an ordinary role."""
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


async def replication(fetch: Fetch) -> Finding:
    [row] = await fetch(_STATE, ())
    standbys = await fetch(_STANDBYS, ())
    message = _followers(await _timeline(fetch), standbys)
    if not row["names"]:
        return Finding("replication", "ok", message)
    return judge(
        "replication",
        [
            Problem(
                not any(each["sync_state"] in ("sync", "quorum", None) for each in standbys),
                "bad",
                f"{message}. synchronous_standby_names is {row['names']!r} and no such standby is"
                " connected: commits wait until one is",
                "Start the standby, or empty synchronous_standby_names to go on without one.",
            ),
            Problem(
                row["commit"] in _WEAK,
                "warning",
                f"{message}. synchronous_commit is {row['commit']}: a commit waits"
                f" {_WEAK.get(row['commit'])}, and a failover can lose what was acknowledged",
                "Set synchronous_commit = on.",
            ),
            Problem(
                row["messages"] in _DEAF,
                "warning",
                f"{message}. client_min_messages is {row['messages']}, which hides it when the"
                " server gives up waiting for its standby",
                "Set client_min_messages = warning.",
            ),
        ],
        message,
    )


async def _timeline(fetch: Fetch) -> str:
    try:
        [row] = await fetch(_TIMELINE, ())
    except (asyncpg.PostgresError, PenstockError):
        return "an unknown timeline"  # some managed servers hide it
    return f"timeline {int(row['wal'][:8], 16)}"


def _followers(timeline: str, standbys: list[Any]) -> str:
    """The server's timeline, and the standbys that follow it."""
    if not standbys:
        return f"{timeline}, no standby is connected"
    if any(row["sync_state"] is None for row in standbys):
        # The server shows an ordinary role that standbys are connected, but no details.
        return f"{timeline}, {count(len(standbys), 'standby')} connected; pg_monitor could see more"
    named = [f"{row['name']} ({row['sync_state']})" for row in standbys]
    return f"{timeline}, followed by {', '.join(named)}"


_STATE = """
select current_setting('synchronous_standby_names') as names,
  current_setting('synchronous_commit') as commit,
  current_setting('client_min_messages') as messages
"""
_TIMELINE = "select pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) as wal"
# Without those that take a base backup at this moment.
_STANDBYS = """
select coalesce(nullif(application_name, ''), 'a standby') as name, sync_state
from pg_catalog.pg_stat_replication
where state is distinct from 'backup' order by 1
"""
