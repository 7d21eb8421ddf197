"""What Penstock keeps on the server: whether it is there, ours, and moving."""

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from penstock.db.adapters.caller_connection import Fetch
from penstock.db.connections.driver_errors import translated
from penstock.db.embedded.files import TENANT
from penstock.db.schema import version
from penstock.engine.doctor.finding import Finding, count
from penstock.engine.queries.lists import Lists
from penstock.errors import RolledBack, SchemaMismatch

AHEAD_DAYS = 7
CHECK_SECONDS = 10
GRANT = (
    "`grant usage on schema penstock to …; grant execute on all routines in schema penstock to …;"
    " grant select on penstock.migration, penstock.schema_info to …;`."
)


async def schema(conn: asyncpg.Connection, *, embedded: bool) -> Finding:
    async with conn.transaction(readonly=True):
        found = await version.status(conn)
    try:
        version.refuse_unserved(found)
    except SchemaMismatch as error:
        # Two sentences, or one with what to do after a colon.
        told = str(error)
        said, _, advice = told.partition(". " if ". " in told else ": ")
        if embedded and not found.changed and found.current <= found.wanted:
            return Finding("schema", "warning", said, "It comes with the first use.")
        return Finding("schema", "bad", said, advice[:1].upper() + advice[1:])
    if found.difference:
        said = found.difference.removeprefix("the schema is ")
        return Finding(
            "schema", "warning", said, "Fine during an upgrade: replace this program soon."
        )
    return Finding("schema", "ok", f"at migration {found.current}, as this program wants it")


async def rights(fetch: Fetch) -> Finding:
    [row] = await fetch(
        "select current_user::text as name, r.rolsuper as is_super,"
        " pg_has_role(n.nspowner, 'usage') as owns,"
        " has_schema_privilege(n.oid, 'usage') as uses,"
        " array(select p.proname::text from pg_catalog.pg_proc p"
        "  where p.pronamespace = n.oid and (p.prosecdef or p.prokind = 'p')"
        "  and left(p.proname, 1) <> '_'"
        "  and not has_function_privilege(p.oid, 'execute') order by 1) as missing"
        " from pg_catalog.pg_namespace n, pg_catalog.pg_roles r"
        " where n.nspname = 'penstock' and r.rolname = current_user",
        (),
    )
    name, missing = row["name"], row["missing"]
    if row["is_super"]:
        return Finding(
            "rights",
            "warning",
            f"role {name} is a superuser, whom no right and no row-level policy stops",
            "Connect as a plain role that owns the schema.",
        )
    if not row["uses"] or missing:
        what = f"{count(len(missing), 'function')} ({', '.join(missing[:3])}, …)"
        return Finding(
            "rights",
            "bad",
            f"role {name} may not {'execute ' + what if row['uses'] else 'use schema penstock'}",
            f"A worker needs them all: {GRANT}",
        )
    owner = "owns the schema" if row["owns"] else "may call every function"
    return Finding("rights", "ok", f"role {name} {owner} and is no superuser")


async def tenants(fetch: Fetch) -> Finding:
    """Whether accounts can be shown their own rows in SQL, and no others."""
    [row] = await fetch(
        "select n.nspowner::regrole::text as owner, r.oid is not null as exists,"
        " r.rolsuper or r.rolbypassrls as unbound,"
        " has_schema_privilege(r.oid, n.oid, 'usage')"
        "  and has_table_privilege(r.oid, 'penstock.my_jobs', 'select') as granted,"
        " array(select format('%I.%I', n.nspname, c.relname) from pg_catalog.pg_class c"
        "  where c.relnamespace = n.oid and c.relkind in ('r', 'p') and not c.relrowsecurity"
        "  and has_table_privilege(r.oid, c.oid, 'select') and exists ("
        "   select from pg_catalog.pg_attribute a where a.attrelid = c.oid"
        "   and (a.attname = 'account_id' or c.relname = 'account')) order by 1) as bare"
        " from pg_catalog.pg_namespace n left join pg_catalog.pg_roles r on r.rolname = $1"
        " where n.nspname = 'penstock'",
        (TENANT,),
    )
    if not row["exists"]:
        return Finding(
            "tenants",
            "warning",
            f"there is no role {TENANT}, so no account can be shown its own rows in SQL",
            f"Where that is wanted, a superuser runs `create role {TENANT};"
            f" grant {TENANT} to {row['owner']};`, and then `penstock migrate up` opens them.",
        )
    if row["unbound"]:
        return Finding(
            "tenants",
            "bad",
            f"role {TENANT} passes by row-level security and sees the rows of every account",
            f"`alter role {TENANT} nosuperuser nobypassrls;`.",
        )
    if row["bare"]:
        return Finding(
            "tenants",
            "bad",
            f"role {TENANT} sees the rows of every account in {', '.join(row['bare'][:3])}",
            f"`revoke all on {', '.join(row['bare'])} from {TENANT};`, then `penstock migrate up`.",
        )
    if not row["granted"]:
        return Finding(
            "tenants",
            "warning",
            f"role {TENANT} was not given anything to see yet",
            "Run `penstock migrate up` as the owner of the schema.",
        )
    return Finding("tenants", "ok", f"role {TENANT} sees the rows of its own account and no others")


async def partitions(fetch: Fetch) -> Finding:
    days = (await Lists(fetch).partitions_ahead()) / timedelta(days=1)
    message = f"of history are made for {max(days, 0):.0f} days ahead"
    if days >= AHEAD_DAYS:
        return Finding("partitions", "ok", message)
    return Finding(
        "partitions",
        "warning",
        message,
        "Keep a worker running: it makes them, two weeks ahead.",
    )


async def workers(fetch: Fetch) -> Finding:
    found = await Lists(fetch).workers()
    alive = [worker for worker in found if worker["alive"]]
    lost = [worker["worker_id"] for worker in found if worker["lost_at"]]
    silent = [w["worker_id"] for w in found if not w["alive"] and not w["lost_at"]]
    message = f"{count(len(alive), 'worker')} alive"
    if alive:
        message += f": {', '.join(worker['worker_id'] for worker in alive[:5])}"
    if lost:
        message += f"; lost within a day: {', '.join(lost[:5])}"
    if silent:
        message += f"; silent: {', '.join(silent[:5])}"
    if lost or silent:
        return Finding(
            "workers", "warning", message, "Look why they ended; their jobs went to others."
        )
    return Finding("workers", "ok", message)


async def loops(fetch: Fetch) -> Finding:
    """Whether handlers block the event loops of their workers."""
    found = await Lists(fetch).blocked_loops()
    named = [one for one in found if one["kind"] is not None]
    if any(one["now"] for one in found) or named:
        first = named[0] if named else found[0]
        who = f"a handler of kind {first['kind']}" if named else "nobody that was seen"
        at = f", at {first['place']}" if first["place"] else ""
        return Finding(
            "loops",
            "bad" if first["now"] else "warning",
            f"stood still {count(len(found), 'time')} within a day, last for"
            f" {first['seconds']:.1f} s in worker {first['worker_id']} by {who}{at}",
            "Await something there, give it to `asyncio.to_thread`, or make the handler a plain"
            " `def`: the other jobs of the worker stood still, too.",
        )
    return Finding("loops", "ok", "no handler blocked an event loop within a day")


async def queues(fetch: Fetch) -> Finding:
    """Whether anything waits that nobody will start."""
    status = await Lists(fetch).status()
    alive = any(worker["alive"] for worker in status["workers"])
    waiting = [queue for queue in status["queues"] if queue["queued"]]
    paused = [queue for queue in waiting if queue["paused"]]
    if waiting and not alive:
        total = sum(queue["queued"] for queue in waiting)
        return Finding(
            "queues",
            "bad",
            f"{count(total, 'job')} queued in {_names(waiting)} and no worker is alive",
            "Start one: `penstock worker APP`.",
        )
    unserved = [q for q in waiting if not q["workers"] and q["drive"] == "worker"]
    if unserved := [queue for queue in unserved if not queue["paused"]]:
        total = sum(queue["queued"] for queue in unserved)
        return Finding(
            "queues",
            "bad",
            f"{count(total, 'job')} queued in {_names(unserved)} and no live worker serves"
            f" {'it' if len(unserved) == 1 else 'these queues'}",
            "Start a worker whose app declares a kind in it. Was it renamed, or did its kinds move"
            " to another queue? Keep a handler there until these jobs have finished, or cancel"
            " them.",
        )
    if unhandled := await Lists(fetch).unhandled():
        return Finding(
            "queues",
            "bad",
            "no live worker has a handler for "
            + "; ".join(
                f"kind {one['kind']} ({count(one['jobs'], 'job')} queued in {one['queue']})"
                for one in unhandled[:5]
            ),
            "Start a worker whose app declares it. Was it renamed or removed? Keep its handler"
            " until these jobs have finished, or cancel them.",
        )
    if status["alerts"]:
        acts = any(alert["class"] in ("auth", "quota", "config") for alert in status["alerts"])
        return Finding(
            "queues",
            "bad" if acts else "warning",
            "; ".join(alert["message"] for alert in status["alerts"]),
            "`penstock queues` shows what waits.",
        )
    if paused:
        return Finding(
            "queues",
            "warning",
            "; ".join(
                f"{queue['name']} is paused ({queue['paused_reason'] or 'no reason given'})"
                f" with {count(queue['queued'], 'job')} queued"
                for queue in paused
            ),
            f"`penstock resume {paused[0]['name']}`.",
        )
    if waiting:
        oldest = min(queue["oldest_queued_at"] for queue in waiting)
        age = (datetime.now(UTC) - datetime.fromisoformat(oldest)).total_seconds() / 60
        total = sum(queue["queued"] for queue in waiting)
        return Finding(
            "queues", "ok", f"{count(total, 'job')} queued, the oldest for {max(age, 0):.0f} min"
        )
    return Finding("queues", "ok", f"{count(len(status['queues']), 'queue')}, nothing queued")


async def invariants(conn: asyncpg.Connection) -> Finding:
    try:
        with translated():
            async with conn.transaction(readonly=True):
                await conn.execute(f"set local statement_timeout = {CHECK_SECONDS * 1000:.0f}")
                rows = await conn.fetch("select invariant, subject from penstock.check()")
    except RolledBack:
        return Finding(
            "check",
            "warning",
            f"penstock.check() takes longer than {CHECK_SECONDS} s on this history",
            "Run `penstock check` when there is time.",
        )
    if not rows:
        return Finding("check", "ok", "every invariant holds")
    first = rows[0]
    return Finding(
        "check",
        "bad",
        f"an invariant is broken in {count(len(rows), 'place')}, first:"
        f" {first['invariant']} ({first['subject']})",
        "`penstock check` lists them; please report it.",
    )


def _names(queues: list[dict[str, Any]]) -> str:
    names = [queue["name"] for queue in queues]
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")  # noqa: PLR2004
