"""The own connection of an account sees all rows of that account in SQL, and nothing else.

As psql would: a login that is a member of penstock_tenant, and `set penstock.account`.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from penstock.db.connections.pool import prepare
from penstock.db.embedded.files import TENANT
from support import factory
from support.clock import Clock
from support.cluster import OWNER, Cluster

# Each table with the key of its rows, and their owner.
TABLES = {
    "job": ("id", "account_id"),
    "finished": ("id", "account_id"),
    "ledger": ("id", "account_id"),
    "resolution": ("job_id", "account_id"),
    "batch": ("id", "account_id"),
    "account": ("id", "id"),
}
VIEWS = ("my_jobs", "my_ledger", "my_account")
# Functions that a tenant may call.
ALLOWED = frozenset({"read_my_error"})
# No account has such a name: missing, empty, unknown, the number 0, misspelt, not a name.
NOBODY = [None, "", "u3", "0", "U1", "u1 ", "%", "u1' or true --"]

Tenant = asyncpg.Connection


@pytest.fixture
async def admin(cluster: Cluster, database: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(cluster.superuser_dsn(urlsplit(database).path[1:]))
    yield conn
    await conn.close()


@asynccontextmanager
async def login(
    admin: asyncpg.Connection, database: str, *grants: str
) -> AsyncIterator[asyncpg.Connection]:
    """Create a role with these rights, and log in with it."""
    role = f"login_{uuid4().hex[:12]}"
    await admin.execute(f"create role {role} login")
    for grant in grants:
        await admin.execute(f"grant {grant} to {role}")
    conn = await asyncpg.connect(database.replace(OWNER, role, 1))
    await prepare(conn)
    try:
        yield conn
    finally:
        await conn.close()
        await admin.execute(f"drop owned by {role} cascade")
        await admin.execute(f"drop role {role}")


@pytest.fixture
async def tenant(
    admin: asyncpg.Connection, database: str, conn: asyncpg.Connection, clock: Clock
) -> AsyncIterator[Tenant]:
    """Open a tenant's connection, in a database where others have as many rows."""
    await _fill(conn, clock)
    async with login(admin, database, TENANT) as tenant:
        await set_account(tenant, "u1")
        yield tenant


async def _fill(conn: asyncpg.Connection, clock: Clock) -> None:
    """Make jobs in every state and of several weeks, of u1, of u2 and without an account."""
    await factory.queue(conn)
    await factory.plan(conn)
    await conn.execute("select penstock.declare_kind('paid', 'q', $1)", {"price": 3})
    for owner, amount in (("u1", 1_001), ("u2", 2_002)):
        await conn.execute(
            "select penstock.grant_credits($1, $2, $3, $3)", owner, amount, f"for {owner}"
        )
        await conn.execute("select penstock.deduct_credits($1, 1, ref => $2)", owner, f"by {owner}")
    for _ in range(2):
        worker = await factory.worker(conn)
        for outcome in ("succeeded", "failed"):
            await factory.submit_rows(conn, _jobs())
            started = await factory.claim(conn, worker, limit=10)
            await factory.finish(conn, worker, started, outcome, result={"of": "somebody"})
        await clock.advance("8d")
    worker = await factory.worker(conn)
    for job in _jobs():
        await factory.submit(conn, **job)
    await factory.claim(conn, worker, limit=2)
    await factory.submit_rows(conn, _jobs())


def _jobs() -> list[dict[str, Any]]:
    return [
        {"kind": "paid", "account": "u1", "payload": {"of": "u1"}, "topic": "u1"},
        {"kind": "paid", "account": "u2", "payload": {"of": "u2"}, "topic": "u2"},
        {"kind": "q", "payload": {"of": "nobody"}, "topic": "nobody"},
    ]


async def set_account(conn: asyncpg.Connection, account: str | None) -> None:
    if account is None:
        await conn.execute("reset penstock.account")
    else:
        quoted = account.replace("'", "''")
        await conn.execute(f"set penstock.account = '{quoted}'")


async def rows(conn: asyncpg.Connection, table: str, where: str = "true") -> list[Any]:
    key = TABLES[table][0]
    found = await conn.fetch(f"select {key} from penstock.{table} where {where} order by {key}")
    return [row[key] for row in found]


async def counts(conn: asyncpg.Connection) -> dict[str, int]:
    return {
        name: await conn.fetchval(f"select count(*) from penstock.{name}")
        for name in (*TABLES, *VIEWS)
    }


@pytest.mark.parametrize("account", ["u1", "u2"])
async def test_an_account_sees_all_of_its_own_and_nothing_else(
    tenant: Tenant, conn: asyncpg.Connection, account: str
) -> None:
    """G14"""
    await set_account(tenant, account)
    number = await conn.fetchval("select id from penstock.account where name = $1", account)
    for table, (_, owner) in TABLES.items():
        own = await rows(conn, table, f"{owner} = {number}")
        assert own, f"the test would show nothing of {table}"
        assert len(own) < len(await rows(conn, table)), table
        assert await rows(tenant, table) == own, table
    # They are in several partitions and in every state.
    partitions = await conn.fetchval(
        "select count(distinct tableoid) from penstock.finished where account_id = $1", number
    )
    assert partitions >= 4
    statuses = await tenant.fetch("select distinct status::text from penstock.my_jobs")
    assert {row["status"] for row in statuses} == {"queued", "running", "succeeded", "failed"}


async def test_the_views_have_the_columns_of_the_contract(
    tenant: Tenant, conn: asyncpg.Connection
) -> None:
    """G14, G15"""
    jobs = await tenant.fetch("select * from penstock.my_jobs order by id")
    live, finished = await rows(tenant, "job"), await rows(tenant, "finished")
    assert [job["id"] for job in jobs] == sorted(live + finished)
    assert {job["payload"]["of"] for job in jobs} == {"u1"}
    assert {(job["kind"], job["queue"]) for job in jobs} == {("paid", "q")}
    paid = {(job["status"], job["reserved"], job["charged"], job["refunded"]) for job in jobs}
    assert paid == {
        ("queued", 3, None, None),
        ("running", 3, None, None),
        ("succeeded", 3, 3, 0),
        ("failed", 3, 0, 3),
    }
    lines = await tenant.fetch("select * from penstock.my_ledger order by id")
    assert [line["id"] for line in lines] == await rows(tenant, "ledger")
    assert {line["ref"] for line in lines} == {"for u1", "by u1", None}
    [account] = await tenant.fetch("select * from penstock.my_account")
    leaked = await conn.fetchval("select penstock.read_account('u1')")
    assert (account["id"], account["plan"], account["balance"]) == ("u1", "free", leaked["balance"])
    assert account["balance"] == lines[-1]["balance_after"]


async def test_an_unknown_account_sees_nothing(tenant: Tenant) -> None:
    """G14: nor the rows without an account"""
    nothing = dict.fromkeys((*TABLES, *VIEWS), 0)
    for account in NOBODY:
        await set_account(tenant, account)
        assert await counts(tenant) == nothing, account
    # A setting of one transaction ends with it.
    async with tenant.transaction():
        await tenant.execute("set local penstock.account = 'u1'")
        assert (await counts(tenant))["my_account"] == 1
    assert await counts(tenant) == nothing


async def test_a_connection_without_an_account_sees_nothing(
    tenant: Tenant, admin: asyncpg.Connection, database: str
) -> None:
    """G14"""
    assert (await counts(tenant))["my_account"] == 1
    async with login(admin, database, TENANT) as fresh:
        assert set((await counts(fresh)).values()) == {0}


async def test_nobody_sees_the_rows_of_an_erased_account(
    tenant: Tenant, conn: asyncpg.Connection
) -> None:
    """G14: the rows of an erased account have no owner"""
    await conn.execute("update penstock.account set name = null where name = 'u1'")
    for account in ("u1", *NOBODY):
        await set_account(tenant, account)
        assert set((await counts(tenant)).values()) == {0}, account


async def test_a_batch_of_several_accounts_belongs_to_none(
    tenant: Tenant, conn: asyncpg.Connection
) -> None:
    """G14"""
    await conn.fetch("select penstock.submit_jobs($1)", _jobs())
    batch = await conn.fetchval("select id from penstock.batch order by id desc limit 1")
    for account in ("u1", "u2"):
        await set_account(tenant, account)
        seen = await tenant.fetch("select topic from penstock.my_jobs where batch = $1", batch)
        assert [row["topic"] for row in seen] == [account]
        assert batch not in await rows(tenant, "batch")


async def test_a_plan_made_for_one_account_does_not_serve_another(tenant: Tenant) -> None:
    """G14: prepared statements, with a plan of their own and with a generic one"""
    statement = await tenant.prepare("select distinct topic from penstock.my_jobs where $1")
    for _ in range(4):
        for account in ("u1", "u2", "u3", ""):
            await set_account(tenant, account)
            found = [row["topic"] for row in await statement.fetch(True)]
            assert found == ([account] if account in ("u1", "u2") else [])


async def test_the_owner_can_set_and_reset_the_role(
    tenant: Tenant, conn: asyncpg.Connection
) -> None:
    """G14: as an app does that has one connection for all tenants; plans are not reused either"""
    assert tenant
    statement = await conn.prepare("select distinct topic from penstock.my_jobs order by 1")
    await set_account(conn, "u2")
    for _ in range(8):
        assert [row["topic"] for row in await statement.fetch()] == ["nobody", "u1", "u2"]
        await conn.execute(f"set role {TENANT}")
        assert [row["topic"] for row in await statement.fetch()] == ["u2"]
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await conn.execute("select penstock.grant_credits('u2', 5)")
        await conn.execute("reset role")
    async with conn.transaction():
        await conn.execute(f"set local role {TENANT}")
        await conn.execute("set local penstock.account = 'u1'")
        assert [row["topic"] for row in await statement.fetch()] == ["u1"]
    assert len(await statement.fetch()) == 3


async def test_a_tenant_cannot_change_to_another_role(tenant: Tenant, cluster: Cluster) -> None:
    """G14"""
    superuser = urlsplit(cluster.superuser_dsn("x")).username
    for sql in (
        f"set role {OWNER}",
        f"set role {superuser}",
        f"set session authorization {OWNER}",
        f"set session_replication_role = replica; set role {OWNER}",
        f"grant {OWNER} to {TENANT}",
        f"alter role {TENANT} bypassrls",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await tenant.execute(sql)
    await tenant.execute(f"set role {TENANT}")
    assert (await counts(tenant))["account"] == 1
    await tenant.execute("reset role")
    assert (await counts(tenant))["account"] == 1


async def test_without_row_security_there_is_an_error_and_no_row(tenant: Tenant) -> None:
    """G14"""
    await tenant.execute("set row_security = off")
    for name in (*TABLES, *VIEWS):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await tenant.fetch(f"select * from penstock.{name}")


async def test_a_tenant_cannot_write(tenant: Tenant, conn: asyncpg.Connection) -> None:
    """G14: not on any table or view, the own rows included"""
    before = await factory.contents(conn)
    relations = await conn.fetch(
        "select c.relname, c.relkind = 'v' as is_view,"
        " (select quote_ident(a.attname) from pg_attribute a where a.attrelid = c.oid"
        "  and a.attnum > 0 and not a.attisdropped order by a.attnum desc limit 1) as col"
        " from pg_class c where c.relnamespace = 'penstock'::regnamespace"
        " and c.relkind in ('r', 'p', 'v')"
    )
    assert len(relations) > 40
    for row in relations:
        name, col = f"penstock.{row['relname']}", row["col"]
        tries = [
            f"insert into {name} default values",
            f"update {name} set {col} = {col}",
            f"delete from {name}",
        ]
        if not row["is_view"]:
            tries += [
                f"truncate {name}",
                f"alter table {name} disable row level security",
                f"create policy mine on {name} using (true)",
                f"create trigger mine before insert on {name} execute function now()",
                f"create index on {name} ({col})",
            ]
        for sql in tries:
            with pytest.raises(asyncpg.PostgresError) as refusal:
                await tenant.execute(sql)
            # Nobody can write to a view of several tables.
            no_right, no_such_thing = "42501", ("55000", "0A000")
            assert refusal.value.sqlstate in (
                (no_right, *no_such_thing) if row["is_view"] else (no_right,)
            ), sql
    for sql in (
        "do 'begin lock table penstock.job in row exclusive mode; end'",
        "select * from penstock.job for update",
        "select * from penstock.account for key share",
        "create table penstock.mine ()",
        "create view penstock.mine as select 1",
        "create or replace function penstock.clock() returns timestamptz return now()",
        "alter function penstock.clock() volatile",
        "drop view penstock.my_jobs",
        "alter view penstock.my_jobs reset (security_invoker)",
        "drop policy tenant_reads_own on penstock.job",
        "select nextval('penstock.ledger_id_seq')",
        "select last_value from penstock.ledger_id_seq",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await tenant.execute(sql)
    assert await factory.contents(conn) == before


async def test_a_tenant_can_call_no_other_function(
    tenant: Tenant, conn: asyncpg.Connection
) -> None:
    """G14, R-S2: the identity is an argument of them, so a caller could be any account"""
    before = await factory.contents(conn)
    routines = await conn.fetch(
        "select p.oid, p.proname as name, p.oid::regprocedure::text as signature, p.proisstrict,"
        " case p.prokind when 'p' then 'call' else 'select' end as verb,"
        " array(select format('null::%s', format_type(t, null))"
        "  from unnest(p.proargtypes) with ordinality u (t, n) order by n) as arguments"
        " from pg_proc p where p.pronamespace = 'penstock'::regnamespace"
    )
    assert len(routines) > 100
    assert {"grant_credits", "submit_job", "read_job"} <= {row["name"] for row in routines}
    for row in routines:
        if row["name"] in ALLOWED:
            continue
        may = await tenant.fetchval("select has_function_privilege($1::oid, 'execute')", row["oid"])
        assert not may, row["signature"]
        if row["proisstrict"]:
            continue  # a strict function is not called with nulls
        arguments = ", ".join(row["arguments"])
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await tenant.execute(f"{row['verb']} penstock.{row['name']}({arguments})")
    for call in (
        "grant_credits('u1', 5)",
        "refund_credits('u1', 'by u1')",
        "deduct_credits('u2', 5, ref => 'mine')",
        "submit_job('paid', '{}', account => 'u2', price => 0)",
        "_book('grant', array[1], array[5], array[null]::uuid[])",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await tenant.execute(f"select penstock.{call}")
    assert await factory.contents(conn) == before


async def test_a_tenant_cannot_read_partitions_directly(
    tenant: Tenant, conn: asyncpg.Connection
) -> None:
    """G14: a partition has no policy of its own"""
    parts = await conn.fetch(
        "select c.oid::regclass::text as name from pg_class c"
        " where c.relnamespace = 'penstock'::regnamespace and c.relispartition"
        " and c.relkind in ('r', 'p')"
    )
    assert len(parts) > 10
    for part in parts:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await tenant.execute(f"select 1 from {part['name']}")
    assert await tenant.fetch("select id from only penstock.finished") == []
    sample = "select distinct topic from penstock.finished tablesample system (100)"
    assert [row["topic"] for row in await tenant.fetch(sample)] == ["u1"]


async def test_a_tenant_can_read_no_other_table(tenant: Tenant, conn: asyncpg.Connection) -> None:
    """G14"""
    relations = await conn.fetch(
        "select relname from pg_class where relnamespace = 'penstock'::regnamespace"
        " and relkind in ('r', 'p', 'v') and relname <> 'test_clock'"
    )
    for name in {row["relname"] for row in relations} - {*TABLES, *VIEWS}:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await tenant.execute(f"select * from penstock.{name}")
    # Of kinds and queues only the names, which the views show, and not the options.
    assert await tenant.fetch(
        "select id, name from penstock.kind union select id, name from penstock.queue"
    )
    for column in ("declared", "price", "account_fixed"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await tenant.execute(f"select {column} from penstock.kind")


async def test_a_copy_has_the_rows_of_the_query(tenant: Tenant) -> None:
    """G14"""
    for table in TABLES:
        whole, queried = BytesIO(), BytesIO()
        # Tenants may not read all columns of jobs.
        columns = ["id", "topic"] if table in ("job", "finished") else None
        shown = ", ".join(columns or ["*"])
        # A copy of a partitioned table alone has no rows, or is refused.
        with suppress(asyncpg.WrongObjectTypeError):
            await tenant.copy_from_table(
                table, schema_name="penstock", output=whole, columns=columns
            )
        await tenant.copy_from_query(f"select {shown} from penstock.{table}", output=queried)
        own = queried.getvalue()
        assert own.count(b"\n") == len(await rows(tenant, table))
        assert whole.getvalue() == own or (table == "finished" and not whole.getvalue())
        assert b"u2" not in own
        assert b"nobody" not in own


async def test_statistics_about_other_accounts_are_not_visible(
    tenant: Tenant, conn: asyncpg.Connection
) -> None:
    """G14: the most common payloads and topics are in the planner's statistics"""
    await conn.execute("analyze")
    assert await conn.fetchval("select count(*) from pg_stats where schemaname = 'penstock'")
    leaked = await tenant.fetch(
        "select distinct tablename, attname from pg_stats"
        " where schemaname = 'penstock' and tablename <> 'test_clock'"
    )
    assert {tuple(row) for row in leaked} <= {
        (table, column) for table in ("kind", "queue") for column in ("id", "name")
    }


PEEK = """
create function pg_temp.peek(text) returns boolean language plpgsql cost 0.0000000001
  as $$ begin raise notice 'peek %', $1; return true; end $$;
create function pg_temp.same(text, text) returns boolean language plpgsql cost 0.0000000001
  as $$ begin raise notice 'peek % %', $1, $2; return true; end $$;
create operator pg_temp.=== (leftarg = text, rightarg = text, function = pg_temp.same,
  restrict = eqsel, join = eqjoinsel);
"""


async def test_a_condition_that_leaks_its_arguments_gets_own_rows_only(
    tenant: Tenant,
) -> None:
    """G14: a cheap function runs before other conditions, but not before the check of the owner"""
    leaked: list[str] = []
    tenant.add_log_listener(lambda _, message: leaked.append(str(message)))
    await tenant.execute(PEEK)
    for settings in ("", "set enable_indexscan = off; set enable_bitmapscan = off"):
        if settings:
            await tenant.execute(settings)
        for name in (*TABLES, *VIEWS):
            # Tenants may not read all columns of these, so no row as a whole.
            shown = ".topic" if name in ("job", "finished") else "::text"
            mine, other = f"t{shown}", f"o{shown}"
            leaked.clear()
            for sql in (
                f"select 1 from penstock.{name} t where pg_temp.peek({mine})",
                f"select 1 from penstock.{name} t where {mine} operator(pg_temp.===) 'x'",
                f"select 1 from penstock.{name} t join penstock.{name} o on pg_temp.peek({other})",
                f"select 1 from penstock.{name} t order by pg_temp.peek({mine})",
                f"select count(*) filter (where pg_temp.peek({mine})) from penstock.{name} t",
            ):
                leaked.clear()
                await tenant.fetch(sql)
                assert leaked, f"the trick does not work at all: {sql}"
                assert not [line for line in leaked if "u2" in line or "nobody" in line], sql


async def test_a_condition_that_fails_on_a_row_fails_on_own_rows_only(
    tenant: Tenant, conn: asyncpg.Connection
) -> None:
    """G14"""
    others = await conn.fetchval("select balance from penstock.account where name = 'u2'")
    for name in ("account", "my_account"):
        sql = f"select 1 from penstock.{name} where 1 / (balance - {others}) is not null"
        assert len(await tenant.fetch(sql)) == 1
    with pytest.raises(asyncpg.InvalidTextRepresentationError, match='"u1"'):
        await tenant.fetch("select 1 from penstock.job where topic::integer = 1")
    await set_account(tenant, "u3")
    for name in ("job", "finished", "my_jobs"):
        sql = f"select 1 from penstock.{name} where topic::integer = 1"
        assert await tenant.fetch(sql) == []


TRAPS = """
create temporary table account (id bigint, name text, plan text, balance bigint);
insert into account values (1, 'u1', 'free', 987653), (2, 'u2', 'free', 987653);
create temporary table job (id uuid, account_id bigint);
create temporary table ledger (account_id bigint, ref text, kind text, amount bigint);
create temporary table resolution (job_id uuid, account_id bigint, reserved bigint);
create temporary table kind (id integer, name text, price jsonb);
create temporary table plan (name text, per_hour integer, is_default boolean);
create temporary table recent_submit (account_id bigint, at timestamptz, n integer);
create temporary table setting (accounts_strict boolean);
create domain pg_temp.uuid as text;
create function pg_temp.current_setting(text, boolean) returns text return 'u2';
create function pg_temp.length(text) returns integer return 5;
create function pg_temp.abs(bigint) returns bigint return 0;
create function pg_temp.clock() returns timestamptz return now();
create function pg_temp._lock_account(text) returns bigint return 2;
create function pg_temp._price(jsonb, jsonb) returns bigint return 0;
create function pg_temp._refuse(integer, text, text) returns integer return 0;
set search_path = pg_temp, penstock, pg_catalog;
"""
TRAPPED = ("job", "ledger", "resolution", "kind", "plan", "recent_submit", "setting")


async def test_a_tenants_own_objects_do_not_change_the_rows_it_sees(tenant: Tenant) -> None:
    """G14, R-S4"""
    before = {name: await rows(tenant, name) for name in TABLES}
    views = await counts(tenant)
    await tenant.execute(TRAPS)
    assert {name: await rows(tenant, name) for name in TABLES} == before
    assert await counts(tenant) == views
    assert await tenant.fetchval("select id from penstock.my_account") == "u1"


async def test_a_callers_own_objects_do_not_change_credits(
    admin: asyncpg.Connection, conn: asyncpg.Connection, clock: Clock, database: str
) -> None:
    """G14, R-S4: the functions run with the owner's rights, and read the owner's tables"""
    await _fill(conn, clock)
    calls: Sequence[tuple[str, int]] = (
        ("grant_credits('u1', 10, ref => 'a')", 10),
        ("grant_credits('u1', 10, ref => 'a')", 0),
        ("deduct_credits('u1', 5, ref => 'b')", -5),
        ("refund_credits('u1', 'b')", 5),
        ("submit_job('paid', '{}', account => 'u1')", -3),
    )
    rights = [f"execute on function penstock.{call.split('(')[0]}" for call, _ in calls]
    async with login(admin, database, "usage on schema penstock", *rights) as app:
        await app.execute(TRAPS)
        balance = await conn.fetchval("select balance from penstock.account where name = 'u1'")
        for call, moved in calls:
            answer = await app.fetchval(f"select penstock.{call}")
            balance += moved
            assert answer["balance"] == balance, call
        with factory.refused(402, "insufficient_credits", "account"):
            await app.execute("select penstock.deduct_credits('u1', 900000, ref => 'c')")
        assert balance == await conn.fetchval(
            "select balance from penstock.account where name = 'u1'"
        )
        for name in TRAPPED:
            assert await app.fetchval(f"select count(*) from pg_temp.{name}") == 0
        assert await app.fetchval("select sum(balance) from pg_temp.account") == 2 * 987653
