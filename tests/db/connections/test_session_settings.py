"""Our own connections apply the settings they rely on, against those of role and database."""

import asyncpg
import pytest

from penstock.db.connections import session_settings
from penstock.db.connections.connect import open_connection
from penstock.db.connections.listener import open_session
from penstock.db.connections.pool import open_pool
from penstock.db.schema import migrations
from support.session_settings import Of, sessions_with

ODD = {
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "1min",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1min",
    "idle_session_timeout": "1min",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "extra_float_digits": "-15",
    "quote_all_identifiers": "on",
    "exit_on_error": "on",
}
WANTED = {
    "default_transaction_isolation": "read committed",
    **dict.fromkeys(
        ("default_transaction_deferrable", "transform_null_equals", "exit_on_error"), "off"
    ),
    "quote_all_identifiers": "off",
    **dict.fromkeys(("standard_conforming_strings", "array_nulls"), "on"),
    **dict.fromkeys([name for name in ODD if name.endswith("_timeout")], "0"),
    "extra_float_digits": "1",
}

DEFINED = "select oid from pg_class where relnamespace = 'penstock'::regnamespace order by 1"


async def shown(conn: asyncpg.Connection) -> dict[str, str]:
    rows = await conn.fetch(
        "select name, current_setting(name) from unnest($1::text[]) name", [*ODD]
    )
    return {row[0]: row[1] for row in rows}


def test_every_pinned_setting_is_tested() -> None:
    assert {*session_settings.PINNED} - {"transaction_timeout"} == {
        *ODD
    }  # this setting is newer than Postgres 15


@pytest.mark.parametrize("of", ["database", "role"])
async def test_each_of_our_sessions_has_the_expected_settings(migrated: str, of: Of) -> None:
    """D3"""
    with sessions_with(migrated, of, **ODD):
        conn = await open_connection(migrated)
        session = await open_session(migrated, name="penstock test")
        pool = await open_pool(migrated, max_size=1)
        async with pool.acquire() as pooled:
            found = [await shown(one) for one in (conn, session, pooled)]
        assert found == [WANTED] * 3
        for one in (conn, session):
            await one.close()
        await pool.close()


async def test_migrations_do_not_depend_on_default_settings(blank: str) -> None:
    """D3: the next `up` finds nothing to replace either."""
    with sessions_with(blank, "role", **ODD, check_function_bodies="off", search_path="nowhere"):
        conn = await open_connection(blank)
        assert (await migrations.up(conn)).migrations
        await conn.execute("update penstock.schema_info set functions_checksum = 'other'")
        before = await conn.fetch(DEFINED)
        await migrations.up(conn)
        assert await conn.fetch(DEFINED) == before
        await conn.close()
