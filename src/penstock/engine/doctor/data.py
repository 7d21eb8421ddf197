"""Penstock's schema on the server: whether it exists, is permitted, and jobs move."""

from datetime import UTC, datetime, timedelta

import asyncpg

from penstock.db.adapters.caller_connection import Fetch
from penstock.db.connections.driver_errors import translated
from penstock.db.embedded.files import TENANT
from penstock.db.schema import version
from penstock.engine.doctor.finding import Finding, Problem, count, judge
from penstock.engine.queries.lists import Lists
from penstock.engine.statements import Answer
from penstock.errors import RolledBack, SchemaMismatch

AHEAD_DAYS = 7
CHECK_SECONDS = 10
GRANT = (
    "`grant usage on schema penstock to …; grant execute on all routines in schema penstock to …;"
    " grant select on penstock.migration, penstock.schema_info to …;`."
)


async def schema(conn: asyncpg.Connection, *, embedded: bool) -> Finding:
    async with conn.transaction(readonly=True):
        status = await version.status(conn)
    try:
        version.refuse_unserved(status)
    except SchemaMismatch as error:
        # The message has two sentences, or one with the advice after a colon.
        text = str(error)
        what, _, advice = text.partition(". " if ". " in text else ": ")
        if embedded and not status.changed and status.current <= status.wanted:
            return Finding("schema", "warning", what, "It is installed at the first use.")
        return Finding("schema", "bad", what, advice[:1].upper() + advice[1:])
    difference = (status.difference or "").removeprefix("the schema is ")
    upgrade = "Fine during an upgrade: replace this program soon."
    return judge(
        "schema",
        [Problem(difference, "warning", difference, upgrade)],
        f"at migration {status.current}, as this program wants it",
    )


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
    what = f"execute {count(len(missing), 'function')} ({', '.join(missing[:3])}, …)"
    owner = "owns the schema" if row["owns"] else "may call every function"
    return judge(
        "rights",
        [
            Problem(
                row["is_super"],
                "warning",
                f"role {name} is a superuser: no right and no row-level policy limits it",
                "Connect as an ordinary role that owns the schema.",
            ),
            Problem(
                not row["uses"] or missing,
                "bad",
                f"role {name} may not {what if row['uses'] else 'use schema penstock'}",
                f"A worker needs them all: {GRANT}",
            ),
        ],
        f"role {name} {owner} and is no superuser",
    )


async def tenants(fetch: Fetch) -> Finding:
    """Whether accounts can see their own rows in SQL, and no others."""
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
    bare = row["bare"]
    return judge(
        "tenants",
        [
            Problem(
                not row["exists"],
                "warning",
                f"there is no role {TENANT}, so no account can see its own rows in SQL",
                f"If you need that, a superuser runs `create role {TENANT};"
                f" grant {TENANT} to {row['owner']};`, and then `penstock migrate up` opens them.",
            ),
            Problem(
                row["unbound"],
                "bad",
                f"role {TENANT} bypasses row-level security and sees the rows of every account",
                f"`alter role {TENANT} nosuperuser nobypassrls;`.",
            ),
            Problem(
                bare,
                "bad",
                f"role {TENANT} sees the rows of every account in {', '.join(bare[:3])}",
                f"`revoke all on {', '.join(bare)} from {TENANT};`, then `penstock migrate up`.",
            ),
            Problem(
                not row["granted"],
                "warning",
                f"role {TENANT} has no rights on any table or view yet",
                "Run `penstock migrate up` as the owner of the schema.",
            ),
        ],
        f"role {TENANT} sees the rows of its own account and no others",
    )


async def partitions(fetch: Fetch) -> Finding:
    days = (await Lists(fetch).partitions_ahead()) / timedelta(days=1)
    message = f"of history exist for the next {max(days, 0):.0f} days"
    advice = "Keep a worker running: it makes them two weeks ahead."
    return judge("partitions", [Problem(days < AHEAD_DAYS, "warning", message, advice)], message)


async def workers(fetch: Fetch) -> Finding:
    workers = await Lists(fetch).workers()
    alive = [worker["worker_id"] for worker in workers if worker["alive"]]
    lost = [worker["worker_id"] for worker in workers if worker["lost_at"]]
    silent = [w["worker_id"] for w in workers if not w["alive"] and not w["lost_at"]]
    message = f"{count(len(alive), 'worker')} alive"
    for title, names in ((": ", alive), ("; lost within a day: ", lost), ("; silent: ", silent)):
        if names:
            message += f"{title}{', '.join(names[:5])}"
    advice = "Read their logs to find out why; other workers got their jobs."
    return judge("workers", [Problem(lost or silent, "warning", message, advice)], message)


async def loops(fetch: Fetch) -> Finding:
    """Whether handlers block the event loops of their workers."""
    blocked = await Lists(fetch).blocked_loops()
    named = [loop for loop in blocked if loop["kind"] is not None]
    if any(loop["now"] for loop in blocked) or named:
        first = named[0] if named else blocked[0]
        who = f"a handler of kind {first['kind']}" if named else "an unknown task"
        at = f", at {first['place']}" if first["place"] else ""
        return Finding(
            "loops",
            "bad" if first["now"] else "warning",
            f"stood still {count(len(blocked), 'time')} within a day, last for"
            f" {first['seconds']:.1f} s in worker {first['worker_id']} by {who}{at}",
            "Await something there, move the work to `asyncio.to_thread`, or make the handler a"
            " plain `def`: the other jobs of the worker stood still, too.",
        )
    return Finding("loops", "ok", "no handler blocked an event loop within a day")


async def queues(fetch: Fetch) -> Finding:
    """Whether jobs wait that no worker will start."""
    status = await Lists(fetch).status()
    alive = any(worker["alive"] for worker in status["workers"])
    waiting = [queue for queue in status["queues"] if queue["queued"]]
    paused = [queue for queue in waiting if queue["paused"]]
    unserved = [
        queue
        for queue in waiting
        if not queue["workers"] and queue["drive"] == "worker" and not queue["paused"]
    ]
    unhandled = await Lists(fetch).unhandled()
    acts = any(alert["class"] in ("auth", "quota", "config") for alert in status["alerts"])
    return judge(
        "queues",
        [
            Problem(
                waiting and not alive,
                "bad",
                f"{_queued(waiting)} and no worker is alive",
                "Start a worker: `penstock worker APP`.",
            ),
            Problem(
                unserved,
                "bad",
                f"{_queued(unserved)} and no live worker serves"
                f" {'it' if len(unserved) == 1 else 'these queues'}",
                "Start a worker whose app declares a kind in it. Was it renamed, or did its kinds"
                " move to another queue? Keep a handler there until these jobs have finished, or"
                " cancel them.",
            ),
            Problem(
                unhandled,
                "bad",
                "no live worker has a handler for "
                + "; ".join(
                    f"kind {kind['kind']} ({count(kind['jobs'], 'job')} queued in {kind['queue']})"
                    for kind in unhandled[:5]
                ),
                "Start a worker whose app declares it. Was it renamed or removed? Keep its handler"
                " until these jobs have finished, or cancel them.",
            ),
            Problem(
                status["alerts"],
                "bad" if acts else "warning",
                "; ".join(alert["message"] for alert in status["alerts"]),
                "`penstock queues` shows the waiting jobs of each queue.",
            ),
            Problem(
                paused,
                "warning",
                "; ".join(
                    f"{queue['name']} is paused ({queue['paused_reason'] or 'no reason given'})"
                    f" with {count(queue['queued'], 'job')} queued"
                    for queue in paused
                ),
                f"`penstock resume {paused[0]['name'] if paused else ''}`.",
            ),
        ],
        f"{count(_jobs(waiting), 'job')} queued, the oldest for {_age_minutes(waiting):.0f} min"
        if waiting
        else f"{count(len(status['queues']), 'queue')}, nothing queued",
    )


def _jobs(queues: list[Answer]) -> int:
    return sum(queue["queued"] for queue in queues)


def _queued(queues: list[Answer]) -> str:
    names = [queue["name"] for queue in queues]
    named = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")  # noqa: PLR2004
    return f"{count(_jobs(queues), 'job')} queued in {named}"


def _age_minutes(queues: list[Answer]) -> float:
    oldest = min(queue["oldest_queued_at"] for queue in queues)
    return max(0, (datetime.now(UTC) - datetime.fromisoformat(oldest)).total_seconds() / 60)


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
    first = f"{rows[0]['invariant']} ({rows[0]['subject']})" if rows else ""
    return judge(
        "check",
        [
            Problem(
                rows,
                "bad",
                f"an invariant is broken in {count(len(rows), 'place')}, first: {first}",
                "`penstock check` lists them; please report it.",
            )
        ],
        "every invariant holds",
    )
