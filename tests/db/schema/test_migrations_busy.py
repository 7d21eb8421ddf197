"""`up` on a database in use: which session waits for which, and which programs are then served."""

import asyncio

import asyncpg
import pytest

from penstock.db.schema import migrations, version
from penstock.errors import MigrationFailed, SchemaMismatch
from support.connections import connections
from support.db.small_schemas import ONE, TWO, Folder
from support.shapes import Connect
from support.waiting import eventually


async def test_up_waits_for_a_long_transaction_in_short_turns_and_then_gives_up(
    conn: asyncpg.Connection, another: Connect, schema: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-F27: a session that waits for a table blocks all sessions behind it."""
    monkeypatch.setattr(migrations, "PATIENCE_SECONDS", 0.5)
    await migrations.up(conn, schema(ONE))
    other = await another()
    async with other.transaction():
        await other.execute("select from penstock.job")
        with pytest.raises(MigrationFailed, match=r"0002_owner.*line 1.*long transaction"):
            await migrations.up(conn, schema(TWO))
    assert (await version.status(conn, schema(ONE))).is_current


async def test_while_up_waits_for_a_long_transaction_other_sessions_continue(
    conn: asyncpg.Connection, another: Connect, schema: Folder
) -> None:
    """R-F27"""
    await migrations.up(conn, schema(ONE))
    other, reader = await another(), await another()
    await reader.execute("set statement_timeout = '2s'")
    long = other.transaction()
    await long.start()
    await other.execute("select from penstock.job")
    going = asyncio.create_task(migrations.up(conn, schema(TWO)))
    waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = $1"
    pid = conn.get_server_pid()
    for number in range(3):
        await eventually(lambda: reader.fetchval(waits, pid), "it waits for the table")
        await reader.execute("insert into penstock.job values ($1, 'meanwhile')", number)
        assert not going.done()
    await long.rollback()
    assert (await going).migrations == ("0002_owner",)
    assert await reader.fetchval("select count(*) from penstock.job") == 3


TRIGGER = """
    create or replace function penstock.guard() returns trigger
    language plpgsql as $$ begin return new; end $$;
    create or replace trigger guard before insert or update on penstock.job
    for each row when (new.note <> 'A'::text) execute function penstock.guard();
"""
BODY = ONE["functions/base/later.sql"].replace("select p_at", "select p_at + interval '1 hour'")


async def test_functions_are_loaded_beside_open_transactions_on_every_table_and_view(
    conn: asyncpg.Connection, another: Connect, schema: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-F27: a view or a trigger is replaced only if its definition changed."""
    monkeypatch.setattr(migrations, "PATIENCE_SECONDS", 0)
    first = {**ONE, "functions/base/guard.sql": TRIGGER}
    await migrations.up(conn, schema(first))
    other = await another()
    async with other.transaction():
        await other.execute("insert into penstock.job values (1)")
        await other.fetch("select from penstock.totals")
        changed = {**first, "functions/base/later.sql": BODY}
        assert (await migrations.up(conn, schema(changed))).functions_loaded
        for file, other_words in (
            ("functions/base/guard.sql", TRIGGER.replace("'A'", "'a'")),
            (
                "functions/base/views.sql",
                ONE["functions/base/views.sql"].replace("count(*)", "count(id)"),
            ),
        ):
            with pytest.raises(MigrationFailed, match="long transaction"):
                await migrations.up(conn, schema({**changed, file: other_words}))
    await migrations.up(conn, schema({**changed, file: other_words}))


async def test_the_functions_of_the_package_are_loaded_beside_open_transactions(
    migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-F27: if this fails, a trigger is not written in the form that Postgres returns."""
    monkeypatch.setattr(migrations, "PATIENCE_SECONDS", 0)
    async with connections(migrated) as connect:
        conn, other = await connect(), await connect()
        await conn.execute("update penstock.schema_info set functions_checksum = null")
        await other.execute("begin")
        for row in await other.fetch(
            "select oid::regclass::text as name, relkind = 'v' as is_view from pg_class"
            " where relnamespace = 'penstock'::regnamespace and relkind in ('r', 'p', 'v')"
            " and relname <> 'schema_info'"
        ):
            mode = "access share" if row["is_view"] else "row exclusive"
            await other.execute(f"lock table {row['name']} in {mode} mode")
        assert (await migrations.up(conn)).functions_loaded


async def test_the_previous_program_is_served_until_the_next_up(
    conn: asyncpg.Connection, schema: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """R-F27: old programs may restart while they are replaced."""
    one, two = schema(ONE), schema(TWO)
    await migrations.up(conn, one)
    await version.admit(conn, one)
    assert not caplog.messages
    await migrations.up(conn, two)
    await migrations.up(conn, two)
    await version.admit(conn, one)
    assert caplog.messages == [
        (
            "the schema is at migration 2, newer than this program, which needs 1:"
            " fine during an upgrade, replace this program soon"
        )
    ]
    found = await version.status(conn, one)
    assert (found.is_served, found.is_current) == (True, False)
    other = schema({**ONE, "functions/base/later.sql": BODY})
    with pytest.raises(SchemaMismatch, match=r"migration 2, newer .* knows 1"):
        await version.require_served(conn, other)

    third = schema({**TWO, "functions/base/later.sql": BODY})
    await migrations.up(conn, third)
    with pytest.raises(SchemaMismatch, match="newer"):
        await version.require_served(conn, one)
    served = await version.require_served(conn, two)
    assert served.difference == (
        "the schema is at migration 2, with functions newer than this program"
    )


async def test_on_the_way_back_the_newer_program_is_no_longer_served(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    """R-F27: the older schema lacks functions that the newer program calls."""
    two, third = schema(TWO), schema({**TWO, "functions/base/later.sql": BODY})
    await migrations.up(conn, two)
    await migrations.up(conn, third)
    await migrations.up(conn, two)
    assert (await version.require_served(conn, two)).is_current
    with pytest.raises(SchemaMismatch, match=r"not the ones that this program needs.*migrate up"):
        await version.require_served(conn, third)
    await migrations.up(conn, third)
    assert (await version.require_served(conn, two)).difference


async def test_a_second_migrator_waits_longer_than_the_first_may_take(
    conn: asyncpg.Connection,
) -> None:
    """R-F27: a migrator that still retries does not make the second one give up."""
    wait = await conn.fetchval("select cast(cast($1 as text) as interval)", migrations.TWIN_WAIT)
    assert wait.total_seconds() >= 2 * migrations.PATIENCE_SECONDS


async def test_after_a_way_down_only_the_next_up_serves_a_program(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    """R-F27: an old program is refused if its functions are missing."""
    one, two = schema(ONE), schema(TWO)
    await migrations.up(conn, one)
    await migrations.up(conn, two)
    await migrations.down(conn, schema=two)
    for program in (one, two):
        with pytest.raises(SchemaMismatch, match="migrate up"):
            await version.require_served(conn, program)
    await migrations.up(conn, one)
    assert (await version.require_served(conn, one)).is_current
    with pytest.raises(SchemaMismatch, match="needs 2"):
        await version.require_served(conn, two)
