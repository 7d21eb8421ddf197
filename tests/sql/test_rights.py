"""A role may call the functions that were granted to it, and has no other right."""

from collections.abc import AsyncIterator
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import asyncpg
import pytest

from penstock.db.connections.pool import prepare
from support import factory
from support.cluster import OWNER, Cluster
from support.factory import refused


@pytest.fixture
async def admin(cluster: Cluster, database: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(cluster.superuser_dsn(urlsplit(database).path[1:]))
    yield conn
    await conn.close()


@pytest.fixture
async def app(
    admin: asyncpg.Connection, conn: asyncpg.Connection, database: str
) -> AsyncIterator[asyncpg.Connection]:
    """An app's own role: it may use the schema and call submit_job, and has no other right."""
    role = f"app_{uuid4().hex[:12]}"
    await admin.execute(f"create role {role} login")
    await conn.execute(f"grant usage on schema penstock to {role}")
    await conn.execute(f"grant execute on function penstock.submit_job to {role}")
    app = await asyncpg.connect(database.replace(OWNER, role, 1))
    await prepare(app)
    yield app
    await app.close()
    await admin.execute(f"drop owned by {role} cascade")
    await admin.execute(f"drop role {role}")


async def test_an_app_submits_without_any_right_on_a_table(
    app: asyncpg.Connection, conn: asyncpg.Connection
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    job = await app.fetchval(
        "select penstock.submit_job('q', $1, account => 'u1', dedupe_key => 'k',"
        " idempotency_key => 'i')",
        {"n": 1},
    )
    assert job["status"] == "queued"
    [start] = await factory.claim(conn, await factory.worker(conn))
    assert (start["id"], start["payload"]) == (UUID(job["id"]), {"n": 1})


async def test_an_app_gets_a_readable_refusal(
    app: asyncpg.Connection, conn: asyncpg.Connection
) -> None:
    await factory.queue(conn)
    with refused(404, "unknown_kind", "kind"):
        await app.execute("select penstock.submit_job('nope', '{}')")
    with refused(422, "invalid_job", "priority"):
        await app.execute("select penstock.submit_job('q', '{}', priority => 5000)")


async def test_an_app_reaches_nothing_else(
    app: asyncpg.Connection, conn: asyncpg.Connection
) -> None:
    await factory.queue(conn)
    await app.execute("select penstock.submit_job('q', '{}')")
    for sql in (
        "select * from penstock.job",
        "select * from penstock.attempts",
        "select * from penstock.queue_stats",
        "insert into penstock.setting default values",
        "update penstock.account set balance = 1000000",
        "delete from penstock.finished",
        "truncate penstock.late_result",
        "create table penstock.mine ()",
        "select penstock.submit_many(array['q'], array['{}'::jsonb])",
        "select * from penstock.claim_jobs(1, 'q', 1)",
        "select penstock.declare_queue('q', '{}')",
        "select penstock._refuse(422, 'x', 'x')",
        "select penstock.clock()",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await app.execute(sql)


async def test_other_roles_have_no_rights(app: asyncpg.Connection) -> None:
    """The app has the rights of PUBLIC: it may have no others than those granted to it."""
    allowed = await app.fetch(
        "select p.proname from pg_proc p where p.pronamespace = 'penstock'::regnamespace"
        " and has_function_privilege(p.oid, 'execute')"
    )
    assert [row["proname"] for row in allowed] == ["submit_job"]
    tables = await app.fetch(
        "select c.relname from pg_class c where c.relnamespace = 'penstock'::regnamespace"
        " and c.relkind in ('r', 'p', 'v', 'S') and c.relname <> 'test_clock'"
        " and (has_table_privilege(c.oid, 'select') or has_table_privilege(c.oid, 'insert')"
        " or has_table_privilege(c.oid, 'update') or has_table_privilege(c.oid, 'delete'))"
    )
    assert tables == []


async def test_a_role_without_the_schema_does_not_even_see_the_functions(
    app: asyncpg.Connection, conn: asyncpg.Connection
) -> None:
    role = await app.fetchval("select current_user")
    await conn.execute(f"revoke usage on schema penstock from {role}")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await app.execute("select penstock.submit_job('q', '{}')")


TRAPS = """
create table evil.loot (who text, what text);
grant all on evil.loot to public;
create function evil.spring(what text) returns void language sql
  as $$ insert into evil.loot values (current_user, what) $$;
create function evil.jsonb_typeof(jsonb) returns text language sql
  as $$ select evil.spring('jsonb_typeof'); select 'object' $$;
create function evil.length(text) returns integer language sql
  as $$ select evil.spring('length'); select 5 $$;
create function evil.date_part(text, timestamptz) returns double precision language sql
  as $$ select evil.spring('date_part'); select 5.0::float8 $$;
create function evil.gen_random_uuid() returns uuid language sql
  as $$ select evil.spring('gen_random_uuid'); select null::pg_catalog.uuid $$;
create function evil.to_hex(bigint) returns text language sql
  as $$ select evil.spring('to_hex'); select '0' $$;
create function evil.to_char(timestamp, text) returns text language sql
  as $$ select evil.spring('to_char'); select '0' $$;
create function evil.pg_notify(text, text) returns void language sql
  as $$ select evil.spring('pg_notify') $$;
create function evil.sha256(bytea) returns bytea language sql
  as $$ select evil.spring('sha256'); select ''::bytea $$;
create function evil.same(text, text) returns boolean language sql
  as $$ select evil.spring('operator ='); select true $$;
create operator evil.= (leftarg = text, rightarg = text, function = evil.same);
create domain evil.uuid as text;
create domain evil.jsonb as text;
create table evil.job (id text);
create table evil.account (id text);
create temporary table setting (only_row boolean, payload_max_bytes integer);
create temporary table kind (id integer, name text);
create temporary table account (id bigint, name text);
create temporary table job (id text);
create temporary table "idempotency" (scope text, key text);
create domain pg_temp.interval as text;
set search_path = evil, pg_temp, pg_catalog, penstock;
"""


async def test_functions_do_not_use_objects_of_their_caller(
    app: asyncpg.Connection, admin: asyncpg.Connection, conn: asyncpg.Connection
) -> None:
    """A function with the owner's rights must not run the caller's code."""
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    role = await app.fetchval("select current_user")
    await admin.execute(f"create schema evil authorization {role}")
    await admin.execute("grant usage on schema evil to public")
    await app.execute(TRAPS)
    await app.execute(
        "select penstock.submit_job('q', '{\"n\": 1}', account => 'u1', priority => 1,"
        " delay_seconds => 0, dedupe_key => 'k', topic => 't', max_attempts => 2,"
        " timeout_seconds => 5, expires_seconds => 60, metadata => '{}', idempotency_key => 'i')"
    )
    sprung = await app.fetch("select who, what from evil.loot")
    assert [tuple(row) for row in sprung] == []
    for trap in ("evil.job", "evil.account", "pg_temp.job", "pg_temp.account", "pg_temp.kind"):
        assert await app.fetchval(f"select count(*) from {trap}") == 0
    assert await conn.fetchval("select count(*) from penstock.job where topic = 't'") == 1


@pytest.mark.parametrize(
    "call",
    [
        "claim_jobs({worker}, 'q', 5)",
        "recover_jobs()",
        "prune_history()",
        "make_partitions()",
        "check()",
        "reconcile()",
        "cancel_job('{job}')",
    ],
)
async def test_internal_functions_do_not_use_a_strange_search_path_either(
    admin: asyncpg.Connection, conn: asyncpg.Connection, call: str
) -> None:
    """The owner may have an odd search path, and temporary tables with such names."""
    await factory.queue(conn, concurrency=3)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    job = await factory.submit(conn, account="u1")
    call = call.replace("claim_jobs(1", f"claim_jobs({worker}")
    call = call.replace("00000000-0000-7000-8000-000000000001", str(job))
    await admin.execute(f"create schema evil authorization {OWNER}")
    await conn.execute(TRAPS)
    await conn.execute(f"select * from penstock.{call.format(worker=worker, job=job)}")
    assert await conn.fetch("select * from evil.loot") == []
    for trap in ("evil.job", "evil.account", "pg_temp.job", "pg_temp.account"):
        assert await conn.fetchval(f"select count(*) from {trap}") == 0
    await conn.execute("reset search_path")
