"""Who may do what in the schema, read from the catalogue: nothing but what is listed here.

`faults` is the checker. It is shown a database for each fault it knows, and must name it: one that
cannot fail would not be worth having.
"""

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from penstock.db.embedded.files import TENANT
from penstock.db.schema import migrations
from support.cluster import Cluster
from support.later_schema import later_schema

# What tenants may read: tables whose rows are held back by a policy, views of those, and columns.
TABLES = ("account", "batch", "ledger", "resolution")
VIEWS = ("my_account", "my_jobs", "my_ledger")
# Of jobs what the views show: not their errors, nor who worked on them.
OF_A_JOB = (
    *("id", "kind_id", "queue_id", "account_id", "topic", "batch_id", "status", "priority"),
    *("attempt", "failures", "created_at", "run_at", "started_at", "stage", "progress"),
    *("payload", "metadata", "reserved"),
)
COLUMNS = {
    *(("kind", name) for name in ("id", "name")),
    *(("queue", name) for name in ("id", "name")),
    *(("job", name) for name in OF_A_JOB),
    *(("finished", name) for name in (*OF_A_JOB, "finished_at", "result")),
}

# Each finds nothing in a database as we make it; $1 is the tenants' role.
CHECKS = {
    "a policy holds nobody back": """
        select format('%s on %s', p.polname, p.polrelid::regclass)
        from pg_policy p join pg_class c on c.oid = p.polrelid
        where c.relnamespace = 'penstock'::regnamespace and p.polpermissive
          and regexp_replace(
            coalesce(pg_get_expr(p.polqual, p.polrelid), 'true'), '[[:space:]]+', ' ', 'g')
          <> case when c.relname = 'account' then
            $q$(name = current_setting('penstock.account'::text, true))$q$
          else
            $q$(account_id = ( SELECT account.id FROM penstock.account $q$
            || $q$WHERE (account.name = current_setting('penstock.account'::text, true))))$q$
          end""",
    "a policy is for everyone, or not for the tenants": """
        select format('%s on %s', p.polname, p.polrelid::regclass)
        from pg_policy p join pg_class c on c.oid = p.polrelid
        where c.relnamespace = 'penstock'::regnamespace
          and p.polroles <> array[to_regrole($1)::oid]""",
    "a policy lets something be written": """
        select format('%s on %s', p.polname, p.polrelid::regclass)
        from pg_policy p join pg_class c on c.oid = p.polrelid
        where c.relnamespace = 'penstock'::regnamespace and p.polcmd <> 'r'""",
    "a table that tenants read does not hold its rows back": """
        select c.oid::regclass::text from pg_class c
        where c.relnamespace = 'penstock'::regnamespace and c.relkind in ('r', 'p')
          and has_table_privilege($1, c.oid, 'select')
          and not (c.relrowsecurity
            and exists (select from pg_policy p where p.polrelid = c.oid))""",
    "a table knows whose its rows are and shows tenants those of others": """
        select c.oid::regclass::text from pg_class c
        where c.relnamespace = 'penstock'::regnamespace and c.relkind in ('r', 'p', 'm', 'f')
          and exists (select from pg_attribute a where a.attrelid = c.oid
            and (a.attname in ('account_id', 'account', 'owner') or c.relname = 'account'))
          and has_any_column_privilege($1, c.oid, 'select')
          and not (c.relrowsecurity
            and exists (select from pg_policy p where p.polrelid = c.oid))""",
    "a view that tenants read is read with its owner's rights": """
        select c.oid::regclass::text from pg_class c
        where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'v'
          and has_any_column_privilege($1, c.oid, 'select')
          and not coalesce((select o.option_value::boolean from pg_options_to_table(c.reloptions) o
            where o.option_name = 'security_invoker'), false)""",
    "a table, view or sequence is granted to everyone": """
        select c.oid::regclass::text from pg_class c
        cross join lateral aclexplode(c.relacl) a
        where c.relnamespace = 'penstock'::regnamespace and a.grantee = 0
        union
        select format('%s.%s', c.oid::regclass, t.attname) from pg_class c
        join pg_attribute t on t.attrelid = c.oid cross join lateral aclexplode(t.attacl) a
        where c.relnamespace = 'penstock'::regnamespace and a.grantee = 0""",
    "a function is granted to everyone": """
        select p.oid::regprocedure::text from pg_proc p
        cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        where p.pronamespace = 'penstock'::regnamespace and a.grantee = 0""",
    "the schema is granted to everyone": """
        select n.nspname::text from pg_namespace n cross join lateral aclexplode(n.nspacl) a
        where n.nspname = 'penstock' and a.grantee = 0""",
    "tenants may call a function": """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = 'penstock'::regnamespace and p.proname <> 'read_my_error'
          and has_function_privilege($1, p.oid, 'execute')""",
    "tenants may make things in the schema": """
        select 'create' where has_schema_privilege($1, 'penstock', 'create')""",
    "what comes later will be granted without anyone saying so": """
        select format('%s in %s', d.defaclobjtype, d.defaclnamespace::regnamespace)
        from pg_default_acl d cross join lateral aclexplode(d.defaclacl) a
        where d.defaclnamespace in (0, 'penstock'::regnamespace)
          and a.grantee in (0, to_regrole($1))""",
    "the tenants' role passes by the policies": """
        select r.rolname::text from pg_roles r
        where r.rolname = $1 and (r.rolsuper or r.rolbypassrls or r.rolcreaterole
          or r.rolreplication or r.rolcanlogin)""",
    "the tenants' role is a member of another": """
        select m.roleid::regrole::text from pg_auth_members m where m.member = to_regrole($1)""",
    "a function with its owner's rights follows the caller's search path": """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = 'penstock'::regnamespace and p.prosecdef
          and not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)""",
}

# Every right on a relation or a column that was given to the tenants.
GIVEN = """
select c.relname::text as relation, null as col, a.privilege_type as privilege, a.is_grantable
from pg_class c cross join lateral aclexplode(c.relacl) a
where c.relnamespace = 'penstock'::regnamespace and a.grantee = to_regrole($1)
union all
select c.relname::text, t.attname::text, a.privilege_type, a.is_grantable
from pg_class c join pg_attribute t on t.attrelid = c.oid
cross join lateral aclexplode(t.attacl) a
where c.relnamespace = 'penstock'::regnamespace and a.grantee = to_regrole($1)
"""
NOT_LISTED = "tenants have a right that is not listed"
NOT_GIVEN = "tenants lack a right that is listed"


async def faults(conn: asyncpg.Connection) -> set[tuple[str, str]]:
    """What is wrong, and where."""
    found = set()
    for fault, sql in CHECKS.items():
        # One parameter for all, also for those that do not ask for it.
        rows = await conn.fetch(f"with said as (select $1::text) {sql}", TENANT)
        found |= {(fault, row[0]) for row in rows}
    listed: set[tuple[str, str | None, str, bool]]
    listed = {(name, None, "SELECT", False) for name in (*TABLES, *VIEWS)}
    listed |= {(relation, column, "SELECT", False) for relation, column in COLUMNS}
    given = {tuple(row) for row in await conn.fetch(GIVEN, TENANT)}
    found |= {(NOT_LISTED, right[0]) for right in given - listed}
    found |= {(NOT_GIVEN, right[0]) for right in listed - given}
    return found


@pytest.fixture
async def conn(migrated: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(migrated)
    yield conn
    await conn.close()


async def test_the_rights_are_those_that_are_listed(conn: asyncpg.Connection) -> None:
    """G14"""
    assert await faults(conn) == set()


USING = "using (account_id = (select id from penstock.account where name ="
OWN = f"{USING} current_setting('penstock.account', true)))"

# How a database is spoilt, and what is then said of it.
SPOILT: dict[str, set[tuple[str, str]]] = {
    "create policy p on penstock.job for select to penstock_tenant using (true)": {
        ("a policy holds nobody back", "p on penstock.job")
    },
    "create policy p on penstock.job for select to penstock_tenant using (account_id > 0)": {
        ("a policy holds nobody back", "p on penstock.job")
    },
    f"create policy p on penstock.job for select to penstock_tenant"
    f" {OWN.removesuffix(')')} or topic = 'public')": {
        ("a policy holds nobody back", "p on penstock.job")
    },
    f"create policy p on penstock.job for select {OWN}": {
        ("a policy is for everyone, or not for the tenants", "p on penstock.job")
    },
    f"create policy p on penstock.job for select to penstock_tenant, current_user {OWN}": {
        ("a policy is for everyone, or not for the tenants", "p on penstock.job")
    },
    f"create policy p on penstock.ledger to penstock_tenant {OWN}": {
        ("a policy lets something be written", "p on penstock.ledger")
    },
    f"create policy p on penstock.job for delete to penstock_tenant {OWN}": {
        ("a policy lets something be written", "p on penstock.job")
    },
    "alter table penstock.resolution disable row level security": {
        (fault, "penstock.resolution")
        for fault in (
            "a table that tenants read does not hold its rows back",
            "a table knows whose its rows are and shows tenants those of others",
        )
    },
    "drop policy tenant_reads_own on penstock.batch": {
        (fault, "penstock.batch")
        for fault in (
            "a table that tenants read does not hold its rows back",
            "a table knows whose its rows are and shows tenants those of others",
        )
    },
    "grant select on penstock.plan to penstock_tenant": {
        ("a table that tenants read does not hold its rows back", "penstock.plan"),
        (NOT_LISTED, "plan"),
    },
    "create table penstock.invoice (account_id bigint, total bigint);"
    " grant select (total) on penstock.invoice to penstock_tenant": {
        (
            "a table knows whose its rows are and shows tenants those of others",
            "penstock.invoice",
        ),
        (NOT_LISTED, "invoice"),
    },
    "create view penstock.my_batches as select * from penstock.batch;"
    " grant select on penstock.my_batches to penstock_tenant": {
        ("a view that tenants read is read with its owner's rights", "penstock.my_batches"),
        (NOT_LISTED, "my_batches"),
    },
    "alter view penstock.my_jobs set (security_invoker = false)": {
        ("a view that tenants read is read with its owner's rights", "penstock.my_jobs")
    },
    "alter view penstock.my_ledger reset (security_invoker)": {
        ("a view that tenants read is read with its owner's rights", "penstock.my_ledger")
    },
    "grant insert on penstock.late_result to public": {
        ("a table, view or sequence is granted to everyone", "penstock.late_result")
    },
    "grant select (name) on penstock.worker to public": {
        ("a table, view or sequence is granted to everyone", "penstock.worker.name")
    },
    "grant usage on sequence penstock.ledger_id_seq to public": {
        ("a table, view or sequence is granted to everyone", "penstock.ledger_id_seq")
    },
    "grant execute on function penstock.check() to public": {
        ("a function is granted to everyone", 'penstock."check"()'),
        ("tenants may call a function", 'penstock."check"()'),
    },
    "create function penstock.late() returns integer return 1": {
        ("a function is granted to everyone", "penstock.late()"),
        ("tenants may call a function", "penstock.late()"),
    },
    "grant usage on schema penstock to public": {("the schema is granted to everyone", "penstock")},
    "grant execute on function penstock.read_account to penstock_tenant": {
        ("tenants may call a function", "penstock.read_account(text)")
    },
    "grant create on schema penstock to penstock_tenant": {
        ("tenants may make things in the schema", "create")
    },
    "alter default privileges in schema penstock grant select on tables to penstock_tenant": {
        ("what comes later will be granted without anyone saying so", "r in penstock")
    },
    "grant update (balance) on penstock.account to penstock_tenant": {(NOT_LISTED, "account")},
    "grant select on penstock.my_jobs to penstock_tenant with grant option": {
        (NOT_LISTED, "my_jobs"),
        (NOT_GIVEN, "my_jobs"),
    },
    "grant references, trigger, truncate on penstock.job to penstock_tenant": {(NOT_LISTED, "job")},
    "grant select (price) on penstock.kind to penstock_tenant": {(NOT_LISTED, "kind")},
    "grant select (error) on penstock.job to penstock_tenant": {(NOT_LISTED, "job")},
    "grant select on penstock.finished to penstock_tenant": {(NOT_LISTED, "finished")},
    "grant usage on sequence penstock.ledger_id_seq to penstock_tenant": {
        (NOT_LISTED, "ledger_id_seq")
    },
    "revoke select on penstock.my_account from penstock_tenant": {(NOT_GIVEN, "my_account")},
    "create function penstock.late() returns integer security definer"
    " set search_path = penstock return 1; revoke all on function penstock.late() from public": {
        ("a function with its owner's rights follows the caller's search path", "penstock.late()")
    },
    "alter function penstock.grant_credits reset search_path": {
        (
            "a function with its owner's rights follows the caller's search path",
            "penstock.grant_credits(text,bigint,text,text)",
        )
    },
    "alter function penstock.grant_credits set search_path = public, pg_catalog, pg_temp": {
        (
            "a function with its owner's rights follows the caller's search path",
            "penstock.grant_credits(text,bigint,text,text)",
        )
    },
}


async def test_each_way_to_spoil_them_is_seen(conn: asyncpg.Connection) -> None:
    """G14"""
    for spoil, said in SPOILT.items():
        spoilt = conn.transaction()
        await spoilt.start()
        await conn.execute(spoil)
        found = await faults(conn)
        await spoilt.rollback()
        assert found == said, spoil
    assert await faults(conn) == set()
    every = {*CHECKS, NOT_LISTED, NOT_GIVEN} - {fault for fault, _ in OF_THE_ROLE.values()}
    assert every == {fault for said in SPOILT.values() for fault, _ in said}


# The role is the whole server's, so these are done and undone in one transaction.
OF_THE_ROLE = {
    "alter role penstock_tenant bypassrls": (
        "the tenants' role passes by the policies",
        TENANT,
    ),
    "grant pg_read_all_data to penstock_tenant": (
        "the tenants' role is a member of another",
        "pg_read_all_data",
    ),
}


@pytest.mark.parametrize("spoil", OF_THE_ROLE)
async def test_a_role_that_may_more_is_seen(cluster: Cluster, migrated: str, spoil: str) -> None:
    """G14"""
    admin = await asyncpg.connect(cluster.superuser_dsn(urlsplit(migrated).path[1:]))
    try:
        spoilt = admin.transaction()
        await spoilt.start()
        await admin.execute(spoil)
        assert OF_THE_ROLE[spoil] in await faults(admin)
        await spoilt.rollback()
        assert await faults(admin) == set()
    finally:
        await admin.close()


async def test_the_way_up_repairs_what_it_gives(conn: asyncpg.Connection) -> None:
    """G14: who has disabled the policies for an hour, and forgotten it"""
    for spoil in (
        "alter table penstock.job disable row level security",
        "drop policy tenant_reads_own on penstock.ledger",
        "revoke select on penstock.job, penstock.my_jobs from penstock_tenant",
        "revoke select (name) on penstock.kind from penstock_tenant",
        "revoke usage on schema penstock from penstock_tenant",
    ):
        await conn.execute(spoil)
        await migrations.up(conn)
        assert await faults(conn) == set(), spoil


async def test_a_way_up_that_finds_all_given_writes_nothing(
    conn: asyncpg.Connection, migrated: str
) -> None:
    """G14: it would stop everyone else for a moment, at each start of a worker"""
    other = await asyncpg.connect(migrated)
    try:
        async with other.transaction():
            await other.execute("lock table penstock.job, penstock.account in access share mode")
            before = await conn.fetchval(LAST_WRITTEN)
            await migrations.up(conn)
            assert await conn.fetchval(LAST_WRITTEN) == before
    finally:
        await other.close()


async def test_on_the_way_down_tenants_lose_what_they_were_given(conn: asyncpg.Connection) -> None:
    """G14: a way down may take policies along, and what they held back must not stay open"""
    later = later_schema()
    await migrations.up(conn, later)
    await migrations.down(conn, schema=later)
    assert await conn.fetch(GIVEN, TENANT) == []
    assert not await conn.fetchval("select has_schema_privilege($1, 'penstock', 'usage')", TENANT)
    await migrations.up(conn)
    assert await faults(conn) == set()


LAST_WRITTEN = """
select (select max(xmin::text::bigint) from pg_class where relnamespace = 'penstock'::regnamespace)
  || ' ' || (select max(xmin::text::bigint) from pg_policy)
  || ' ' || (select xmin from pg_namespace where nspname = 'penstock')
"""
