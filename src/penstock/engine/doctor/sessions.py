"""Settings that roles and databases give to sessions, and sessions that keep Penstock's locks."""

import asyncio
from typing import Any

from penstock.db.adapters.caller_connection import Fetch
from penstock.db.connections.session_settings import PINNED
from penstock.engine.doctor.finding import Finding, Problem, judge

# The first number of Penstock's advisory locks, and which calls each one separates.
LOCKS = {
    1886413171: "claims and changes of limits",
    1886413172: "submits and changes of order",
    1886413173: "upkeep",
    1886413175: "reports of a worker",
    1886413177: "measurements",
    1886413179: "uploads of an account",
    1886413181: "webhooks",
}
# The locks for which submits and claims of a queue wait.
_OF_QUEUES = (1886413171, 1886413172)
# Penstock itself holds them exclusively only for moments.
LONG_SECONDS = 1.0


async def settings(fetch: Fetch) -> Finding:
    """Whether the settings with which sessions begin change how Penstock works."""
    rows = await fetch(_SETTINGS, (list(PINNED),))
    message = "; ".join(f"{row['name']} is {row['value']} ({row['source']})" for row in rows)
    names = {row["name"] for row in rows}
    slow = next((name for name in names if name.startswith("enable_")), None)
    return judge(
        "settings",
        [
            Problem(
                "default_transaction_read_only" in names,
                "bad",
                f"{message}: nothing can be submitted, claimed or finished",
                "Was it set to protect a full disk? Make room, then `alter … reset"
                " default_transaction_read_only`.",
            ),
            Problem(
                "session_replication_role" in names,
                "bad",
                f"{message}: triggers do not run, so nothing keeps the ledger from being changed",
                "`alter … reset session_replication_role`.",
            ),
            Problem(
                "default_transaction_isolation" in names,
                "warning",
                f"{message}: Penstock's own sessions are read committed anyway, but"
                " transactions of your own that submit may be undone (40001)",
                "Run such a transaction again from its beginning, or begin it as read committed.",
            ),
            Problem(
                slow,
                "warning",
                f"{message}: each call may take much longer",
                f"`alter … reset {slow}`.",
            ),
        ],
        f"{message}; Penstock's own sessions override that"
        if message
        else "sessions begin with nothing that Penstock has to override",
    )


async def locks(fetch: Fetch) -> Finding:
    """Whether a session keeps an advisory lock for which Penstock's calls wait."""
    locks = {_key(row): row for row in await fetch(_HELD, (list(LOCKS),))}
    if locks:
        await asyncio.sleep(LONG_SECONDS)
        later = {_key(row) for row in await fetch(_HELD, (list(LOCKS),))}
        locks = {key: row for key, row in locks.items() if key in later}
    if not locks:
        return Finding("locks", "ok", "no session keeps an advisory lock of Penstock")
    first = next(iter(locks.values()))
    stalls = any(row["space"] in _OF_QUEUES for row in locks.values())
    return Finding(
        "locks",
        "bad" if stalls else "warning",
        "; ".join(map(_holder, locks.values())),
        f"Ask who runs it, or end it: `select pg_terminate_backend({first['pid']});`. Programs of"
        " your own need other numbers for their advisory locks.",
    )


def _key(row: Any) -> tuple[int, int, int]:
    return row["pid"], row["space"], row["object"]


def _holder(row: Any) -> str:
    of = f" (penstock.queue.id = {row['object']})" if row["space"] in _OF_QUEUES else ""
    return (
        f"session {row['pid']} of role {row['role']} ({row['program'] or 'unnamed'}) keeps the lock"
        f" for {LOCKS[row['space']]}{of}"
    )


# Settings of this role, of this database, of roles that may use the schema, and of the whole
# server. Of other roles only settings that would undo their transactions.
_SETTINGS = """
with wanted as (
  select s.name, s.reset_val, s.boot_val from pg_catalog.pg_settings s
  where s.name = any ($1) or starts_with(s.name, 'enable_')
    or s.name in ('default_transaction_read_only', 'session_replication_role')
),
said as (
  select w.name, split_part(c.setting, '=', 2) as value, w.boot_val, r.rolname,
    coalesce('role ' || r.rolname, 'database ' || d.datname) as source
  from pg_catalog.pg_db_role_setting s
  cross join unnest(s.setconfig) c (setting)
  join wanted w on w.name = split_part(c.setting, '=', 1)
  left join pg_catalog.pg_database d on d.oid = s.setdatabase
  left join pg_catalog.pg_roles r on r.oid = s.setrole
  where (s.setdatabase = 0 or d.datname = current_database())
    and (s.setrole = 0 or r.rolname = session_user
      or (w.name = 'default_transaction_isolation' and not r.rolsuper and exists (
        select from pg_catalog.pg_namespace n where n.nspname = 'penstock'
          and has_schema_privilege(r.oid, n.oid, 'usage'))))
)
select distinct s.name, s.value, s.source from said s
where s.value <> s.boot_val and not (starts_with(s.name, 'enable_') and s.value = 'on')
union
select w.name, w.reset_val, 'the server' from wanted w
where w.reset_val <> w.boot_val and not (starts_with(w.name, 'enable_') and w.reset_val = 'on')
  and not exists (select from said s where s.name = w.name)
order by 1, 3
"""
_HELD = """
select l.pid, l.classid::bigint as space, l.objid::bigint as object, a.usename::text as role,
  a.application_name as program
from pg_catalog.pg_locks l
join pg_catalog.pg_database d on d.oid = l.database and d.datname = current_database()
left join pg_catalog.pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and l.objsubid = 2 and l.granted and l.mode = 'ExclusiveLock'
  and l.classid::bigint = any ($1)
order by 1, 2, 3
"""
