"""A server on which nobody may create the tenants' role: no access, a message, access later.

Roles are the whole server's, and all tests share one that has the role: so here is another.
"""

from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest

from penstock.base.settings import Settings
from penstock.db.embedded.database import Embedded
from penstock.db.embedded.files import ROLE, TENANT
from penstock.db.schema import migrations
from penstock.engine.doctor.doctor import examine
from penstock.engine.doctor.finding import Finding
from support.cluster import DEBIAN, SETTINGS

OPENED = Finding("tenants", "ok", f"role {TENANT} sees the rows of its own account and no others")


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Embedded]:
    version = request.config.getoption("--postgres")
    binaries = Path(DEBIAN.format(version=version)) if version else None
    with Embedded.use(tmp_path / "home", bin_dir=binaries, settings=SETTINGS) as server:
        yield server


def ask(server: Embedded, sql: str) -> None:
    """The statements that a superuser runs by hand."""
    with psycopg.connect(server.admin_dsn, autocommit=True) as admin:
        admin.execute(sql.encode())


async def move_up(server: Embedded) -> migrations.Moved:
    conn = await asyncpg.connect(server.dsn)
    try:
        return await migrations.up(conn)
    finally:
        await conn.close()


async def message(server: Embedded) -> Finding:
    settings = Settings(dsn=server.dsn)
    return {finding.name: finding async for finding in examine(settings)}["tenants"]


async def test_without_the_role_tenants_have_no_access_until_it_is_created(
    server: Embedded,
) -> None:
    """G14"""
    ask(server, f"drop role {TENANT}")
    moved = await move_up(server)
    assert moved.functions_loaded
    with psycopg.connect(server.admin_dsn) as admin:
        secured = admin.execute(
            "select count(*) from pg_class c cross join lateral aclexplode(c.relacl) a"
            " where c.relnamespace = 'penstock'::regnamespace and a.grantee <> c.relowner"
        )
        assert secured.fetchone() == (0,)
    assert await message(server) == Finding(
        "tenants",
        "warning",
        f"there is no role {TENANT}, so no account can see its own rows in SQL",
        f"If you need that, a superuser runs `create role {TENANT}; grant {TENANT} to {ROLE};`,"
        " and then `penstock migrate up` opens them.",
    )
    # Another `up` changes nothing and does not fail.
    assert await move_up(server) == migrations.Moved(moved.current, ())

    ask(server, f"create role {TENANT}; grant {TENANT} to {ROLE}")
    assert await message(server) == Finding(
        "tenants",
        "warning",
        f"role {TENANT} has no rights on any table or view yet",
        "Run `penstock migrate up` as the owner of the schema.",
    )
    assert await move_up(server) == migrations.Moved(moved.current, ())
    assert await message(server) == OPENED

    # The owner can now act as a tenant on the same connection.
    conn = await asyncpg.connect(server.dsn)
    try:
        await conn.execute(
            "select penstock.grant_credits('u1', 5), penstock.grant_credits('u2', 7)"
        )
        await conn.execute(f"set role {TENANT}; set penstock.account = 'u2'")
        assert await conn.fetchval("select array_agg(balance) from penstock.my_account") == [7]
    finally:
        await conn.close()

    # Faults of an existing role are reported, too.
    ask(server, f"alter role {TENANT} bypassrls")
    found = await message(server)
    assert (found.level, found.advice) == (
        "bad",
        f"`alter role {TENANT} nosuperuser nobypassrls;`.",
    )
    ask(server, f"alter role {TENANT} nobypassrls")
    ask(server, "alter table penstock.ledger disable row level security")
    found = await message(server)
    assert found.level == "bad"
    assert f"role {TENANT} sees the rows of every account in penstock.ledger" in found.message
    await move_up(server)
    assert await message(server) == OPENED


async def test_an_owner_who_may_create_roles_creates_it(server: Embedded) -> None:
    """G14: a role that may not create roles does not keep a worker from starting."""
    ask(server, f"drop role {TENANT}; alter role {ROLE} createrole; create role plain login")
    await move_up(server)
    assert await message(server) == OPENED
    ask(
        server,
        "grant usage on schema penstock to plain;"
        " grant execute on all routines in schema penstock to plain;"
        " grant select on penstock.migration, penstock.schema_info to plain;"
        " revoke select on penstock.my_jobs from penstock_tenant",
    )
    plain = await asyncpg.connect(server.dsn.replace(ROLE, "plain", 1))
    try:
        assert (await migrations.up(plain)).migrations == ()
    finally:
        await plain.close()
    assert (await message(server)).advice == "Run `penstock migrate up` as the owner of the schema."
    await move_up(server)
    assert await message(server) == OPENED
