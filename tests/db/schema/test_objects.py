"""Functions, views and triggers are loaded from the files; with small test schemas."""

import asyncpg
import pytest

from penstock.db.schema import migrations, version
from penstock.errors import (
    MigrationFailed,
)
from support.db.small_schemas import ONE, TWO, Folder, names


async def test_the_error_for_a_wrong_body_names_file_and_line(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    body = (
        "-- why\ncreate or replace function penstock.f() returns int language sql as $$\n"
        "  select 1\n  from penstock.nowhere $$;"
    )
    wrong = schema({**ONE, "functions/base/f.sql": body})
    with pytest.raises(MigrationFailed, match=r'^f\.sql, line 4: .*"penstock.nowhere" does not'):
        await migrations.up(conn, wrong)
    assert await names(conn) == set()


async def test_functions_are_replaced_and_keep_their_grants(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    await migrations.up(conn, schema(ONE))
    await conn.execute("grant execute on function penstock.zone_of to pg_monitor")
    number = await conn.fetchval("select 'penstock.zone_of(timestamptz)'::regprocedure::oid")
    changed = ONE["functions/base/later.sql"].replace(
        "select p_at", "select p_at + interval '1 hour'"
    )
    moved = await migrations.up(conn, schema({**ONE, "functions/base/later.sql": changed}))
    assert moved == migrations.Moved(1, (), functions_loaded=True)
    assert await conn.fetchval("select penstock.clock() > now() + interval '59 minutes'")
    assert (
        await conn.fetchval("select 'penstock.zone_of(timestamptz)'::regprocedure::oid") == number
    )
    assert await conn.fetchval(
        "select has_function_privilege('pg_monitor', $1::oid, 'execute')", number
    )


async def test_a_function_with_a_changed_signature_is_created_again_with_its_views(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    await migrations.up(conn, schema(ONE))
    changed = {
        "functions/base/clock.sql": "create or replace function penstock.clock() returns date"
        " language sql stable as $$ select current_date $$;",
        "functions/base/later.sql": "create or replace function"
        " penstock.zone_of(p_other timestamptz)"
        " returns timestamptz language sql immutable as $$ select p_other $$;",
    }
    await migrations.up(conn, schema({**ONE, **changed}))
    assert await conn.fetchval("select pg_typeof(at)::text from penstock.totals") == "date"


async def test_a_changed_signature_in_the_last_file_leaves_no_body_without_its_view(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    reads_a_view = (
        "create or replace function penstock.early() returns bigint"
        " language sql stable as $$ select jobs from penstock.totals $$;"
    )
    late = "create or replace function penstock.z() returns {} language sql as $$ select 1 $$;"
    files = {**ONE, "functions/base/early.sql": reads_a_view}
    await migrations.up(conn, schema({**files, "functions/base/z.sql": late.format("integer")}))
    await migrations.up(conn, schema({**files, "functions/base/z.sql": late.format("bigint")}))
    assert await conn.fetchval("select penstock.early() + penstock.z()") == 1


async def test_a_function_with_a_new_optional_argument_replaces_the_old_one(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    """Callers omit the argument, and must not find two functions that fit."""
    calls = (
        "create or replace function penstock.calls() returns integer"
        " language sql stable as $$ select penstock.one(1) $$;"
    )
    one = (
        "create or replace function penstock.one({}) returns integer"
        " language sql immutable as $$ select p_n $$;"
    )
    files = {**ONE, "functions/base/a.sql": calls}
    await migrations.up(conn, schema({**files, "functions/base/z.sql": one.format("p_n integer")}))
    await conn.execute("grant execute on function penstock.one to pg_monitor")
    more = one.format("p_n integer, p_more boolean default true")
    await migrations.up(conn, schema({**files, "functions/base/z.sql": more}))
    assert await conn.fetchval("select penstock.calls()") == 1
    assert await conn.fetchval("select count(*) from pg_proc where proname = 'one'") == 1
    for name, may in (("one(integer, boolean)", True), ("calls()", False)):
        assert may is await conn.fetchval(
            "select has_function_privilege('pg_monitor', $1, 'execute')", f"penstock.{name}"
        ), "who was granted the old one, and nothing else, goes on"


async def test_functions_that_are_in_no_file_are_dropped_with_their_triggers(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    trigger = """
        create or replace function penstock.guard() returns trigger
        language plpgsql as $$ begin return new; end $$;
        create or replace trigger guard before insert on penstock.job
        for each row execute function penstock.guard();
    """
    await migrations.up(conn, schema({**ONE, "functions/base/guard.sql": trigger}))
    assert "guard" in await names(conn)
    await conn.execute("create view penstock.extra as select * from penstock.totals")
    without = {name: text for name, text in ONE.items() if name != "functions/base/export.sql"}
    await migrations.up(conn, schema(without))
    assert {"guard", "extra", "export_jobs"} & await names(conn) == set()
    assert await conn.fetchval("select count(*) from pg_trigger where not tgisinternal") == 0


async def test_a_users_view_prevents_a_drop_and_stays(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    await migrations.up(conn, schema(ONE))
    await conn.execute("create view public.mine as select jobs from penstock.totals")
    with pytest.raises(MigrationFailed, match=r"public\.mine|view mine"):
        await migrations.up(conn, schema(TWO))
    assert (await version.status(conn, schema(ONE))).is_current
    assert await conn.fetchval("select jobs from public.mine") == 0


async def test_other_roles_may_not_execute_loaded_functions(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    await migrations.up(conn, schema(ONE))
    assert not await conn.fetchval(
        "select bool_or(has_function_privilege('pg_monitor', oid, 'execute')) from pg_proc"
        " where pronamespace = 'penstock'::regnamespace"
    )
