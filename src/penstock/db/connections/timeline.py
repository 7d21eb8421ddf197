"""Which line of history a server continues: Postgres begins a new one with each promotion.

A standby that was promoted without all of its primary's commits continues an older state: that is
worth a line in the log. And a server on an older timeline than was seen before is a primary that
failed and came back: what is written to it is lost for all who look at the new one.
"""

import logging
from typing import NamedTuple

import asyncpg

from penstock.errors import Unavailable

_log = logging.getLogger("penstock.db")

# By system identifier, which a cluster shares with its standbys only: the newest timeline.
_seen: dict[int, int] = {}


class Role(NamedTuple):
    is_standby: bool
    system: int
    timeline: int
    """0: the server does not tell."""


async def role_of(conn: asyncpg.Connection) -> Role:
    """Of the server behind a connection. Some managed ones keep their functions to themselves."""
    try:
        [row] = await conn.fetch(_ROLE)
    except asyncpg.PostgresError:
        told = getattr(conn.get_settings(), "in_hot_standby", "off")
        return Role(told == "on", 0, 0)
    return Role(row["is_standby"], row["system"], int((row["wal"] or "0")[:8], 16))


def admit(role: Role, where: str, *, compares: bool = False) -> None:
    """Refuse a standby, and whoever is behind the newest timeline that was seen.

    `compares`: several servers are asked for theirs, and a newer one is no news.
    """
    if role.is_standby:
        refused = Unavailable(f"{where} is a standby, which takes no writes.")
        refused.hint = (
            "Give the address of the primary, or of all servers:"
            " postgresql://user@a,b/database?target_session_attrs=read-write."
        )
        raise refused
    if not role.timeline:
        return
    newest = _seen.setdefault(role.system, role.timeline)
    if role.timeline > newest:
        _seen[role.system] = role.timeline
        if not compares:
            _log.warning(
                "a standby was promoted: the database is on timeline %d, it was on %d. What only"
                " the old primary had is not in it",
                role.timeline,
                newest,
            )
    elif role.timeline < newest:
        refused = Unavailable(
            f"{where} is on timeline {role.timeline} of a database that was seen on {newest}: it is"
            " an old primary that came back."
        )
        refused.hint = (
            "Stop it, and let it return as a standby (pg_rewind). If an older state was restored on"
            " purpose, restart the programs that saw the newer one."
        )
        raise refused


# The timeline is the first third of the name: at once after a promotion, as no checkpoint tells it.
_ROLE = """
select pg_catalog.pg_is_in_recovery() as is_standby, s.system_identifier as system,
  case when not pg_catalog.pg_is_in_recovery()
    then pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) end as wal
from pg_catalog.pg_control_system() s
"""
