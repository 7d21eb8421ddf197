"""Standbys: who follows this server, and whether commits wait for one that can be relied on."""

from typing import Any

import asyncpg

from penstock.db.adapters.caller_connection import Fetch
from penstock.engine.doctor.finding import Finding, count
from penstock.errors import PenstockError

# What a commit waits for that is less than a standby's disk.
_WEAK = {
    "off": "for nothing",
    "local": "for no standby",
    "remote_write": "until the standby has it in memory, not on its disk",
}
# With these a session is not told that the server has given up waiting.
_DEAF = ("error", "fatal", "panic")


async def replication(fetch: Fetch) -> Finding:
    [row] = await fetch(_STATE, ())
    standbys = await fetch(_STANDBYS, ())
    message = _told(await _timeline(fetch), standbys)
    if not row["names"]:
        return Finding("replication", "ok", message)
    if not any(one["sync_state"] in ("sync", "quorum", None) for one in standbys):
        return Finding(
            "replication",
            "bad",
            f"{message}. synchronous_standby_names is {row['names']!r} and no such standby is"
            " connected: commits wait until one is",
            "Start the standby, or empty synchronous_standby_names to go on without one.",
        )
    if row["commit"] in _WEAK:
        return Finding(
            "replication",
            "warning",
            f"{message}. synchronous_commit is {row['commit']}: a commit waits"
            f" {_WEAK[row['commit']]}, and a failover can lose what was acknowledged",
            "Set synchronous_commit = on.",
        )
    if row["messages"] in _DEAF:
        return Finding(
            "replication",
            "warning",
            f"{message}. client_min_messages is {row['messages']}, which hides it when the server"
            " gives up waiting for its standby",
            "Set client_min_messages = warning.",
        )
    return Finding("replication", "ok", message)


async def _timeline(fetch: Fetch) -> str:
    try:
        [row] = await fetch(_TIMELINE, ())
    except (asyncpg.PostgresError, PenstockError):
        return "a timeline that the server does not tell"  # as some managed ones do not
    return f"timeline {int(row['wal'][:8], 16)}"


def _told(begun: str, standbys: list[Any]) -> str:
    """On which timeline, and followed by whom."""
    if not standbys:
        return f"{begun}, no standby is connected"
    if any(one["sync_state"] is None for one in standbys):
        # To a plain role the server shows that they are there, and nothing of them.
        return f"{begun}, {count(len(standbys), 'standby')} connected; pg_monitor could see more"
    named = [f"{one['name']} ({one['sync_state']})" for one in standbys]
    return f"{begun}, followed by {', '.join(named)}"


_STATE = """
select current_setting('synchronous_standby_names') as names,
  current_setting('synchronous_commit') as commit,
  current_setting('client_min_messages') as messages
"""
_TIMELINE = "select pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) as wal"
# Not those that take a base backup at this moment.
_STANDBYS = """
select coalesce(nullif(application_name, ''), 'a standby') as name, sync_state
from pg_catalog.pg_stat_replication
where state is distinct from 'backup' order by 1
"""
