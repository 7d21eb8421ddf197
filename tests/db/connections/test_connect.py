"""Finding the database, and the messages if it cannot be reached."""

import socket
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from penstock.base.settings import Settings
from penstock.db.connections.connect import _explained, connect, connect_ready, open_connection
from penstock.db.connections.display_address import display_address
from penstock.db.connections.driver_errors import fetching
from penstock.db.connections.pool import open_pool
from penstock.errors import Misconfigured, SchemaMismatch, Unavailable
from support.cluster import Cluster

SECRET = "open-sesame"  # noqa: S105  # nobody's


@pytest.mark.parametrize(
    ("dsn", "where"),
    [
        (f"postgresql://u:{SECRET}@db.example:5433/jobs", "db.example:5433/jobs"),
        (f"postgres://u:{SECRET}@a,b:1/jobs?password={SECRET}", "a,b:1/jobs"),
        (f"postgresql://u:x@{SECRET}/y@db.example/jobs", "the given address"),
        (f"postgresql://u:{SECRET}#y@db.example/jobs", "the given address"),
        (f"postgresql://u:{SECRET}@[::1/jobs", "the given address"),
        (f"host=db.example password={SECRET}", "the given address"),
        ("postgresql://u@/jobs?host=/run/postgresql&port=5432", "/run/postgresql, database jobs"),
        ("postgresql:///jobs", "the default host, database jobs"),
    ],
)
def test_an_address_is_displayed_without_its_password(dsn: str, where: str) -> None:
    assert display_address(dsn) == where


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port without a listener; bound, so that no other program can listen on it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def test_a_missing_server_is_unavailable(deaf_port: int) -> None:
    dsn = f"postgresql://u:{SECRET}@127.0.0.1:{deaf_port}/jobs"
    with pytest.raises(Unavailable, match="Connection refused") as caught:
        await open_connection(dsn)
    assert f"at 127.0.0.1:{deaf_port}/jobs cannot be reached" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1,127.0.0.1"],  # several addresses are tried, one after another
)
async def test_the_reason_for_several_addresses_is_reported_once(host: str, deaf_port: int) -> None:
    hosts = ",".join(f"{name}:{deaf_port}" for name in host.split(","))
    with pytest.raises(Unavailable, match=r"reached: Connection refused\.$"):
        await open_connection(f"postgresql://u@{hosts}/jobs")


async def test_an_unknown_host_is_reported() -> None:
    with pytest.raises(Unavailable, match=r"at nowhere\.invalid/jobs cannot be reached: "):
        await open_connection("postgresql://u@nowhere.invalid/jobs")


@pytest.mark.parametrize(
    "dsn",
    [
        f"host=db.example password={SECRET}",
        f"postgresql+asyncpg://u:{SECRET}@db.example/jobs",
        f"postgresql://u:{SECRET}/more@db.example/jobs",
        f"postgresql://u:x@db.example:{SECRET}/jobs",
        f"postgresql://u:{SECRET}@[::1/jobs",
    ],
)
async def test_an_invalid_address_is_misconfigured_and_not_quoted(dsn: str) -> None:
    with pytest.raises(Misconfigured, match="postgresql://user:password@host:port") as caught:
        await open_connection(dsn)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_missing_database_and_an_unknown_user_have_different_errors(blank: str) -> None:
    with pytest.raises(Misconfigured, match="no such database"):
        await open_connection(blank.replace("/test_", "/missing_", 1))
    with pytest.raises(Misconfigured, match='refused user stranger: role "stranger" does not'):
        await open_connection(blank.replace("penstock_owner", "stranger", 1))


@pytest.mark.parametrize(
    ("dsn", "user"),
    [
        ("postgresql://kim%40x:sesame@db.example/shop", "user kim@x"),
        ("postgresql:///shop?host=db.example&user=kim", "user kim"),
        ("postgresql://db.example/shop", "user lee (the address names none)"),
    ],
)
def test_a_wrong_password_names_the_user(
    dsn: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGUSER", "lee")
    found = _explained(dsn, asyncpg.InvalidPasswordError("password of kim was wrong"))
    assert isinstance(found, Misconfigured)
    where = "db.example, database shop" if "host=" in dsn else "db.example/shop"
    assert str(found) == f"The database at {where} refused the password of {user}."
    assert found.hint == "Correct user and password in the address (PENSTOCK_DSN)."


async def test_a_read_only_database_is_not_reported_as_unreachable(cluster: Cluster) -> None:
    with cluster.database() as name:
        conn = await open_connection(cluster.dsn(name))
        await conn.execute("set default_transaction_read_only = on")
        with pytest.raises(Unavailable, match=r"^The database is read-only: cannot exec") as caught:
            await fetching(conn)("select penstock.declare_queue('q')", ())
        assert "default_transaction_read_only" in (caught.value.hint or "")
        assert "Start the server" not in (caught.value.hint or "")
        await conn.close()


async def test_a_role_that_may_not_connect_is_reported(cluster: Cluster) -> None:
    with cluster.database(template=None) as name:
        admin = await asyncpg.connect(cluster.superuser_dsn(name))
        await admin.execute(
            f"alter database {name} owner to current_user;"
            f" revoke connect on database {name} from public"
        )
        await admin.close()
        with pytest.raises(Misconfigured, match="may not connect"):
            await open_connection(cluster.dsn(name))


async def test_json_is_read_and_written_as_python_values(blank: str) -> None:
    value = {"é": [1, 2.5, None, True], "nested": {"x": "\u2028"}}
    pool = await open_pool(blank, name="penstock test", max_size=2)
    async with pool.acquire() as conn:
        assert await conn.fetchval("select $1::jsonb", value) == value
        assert await conn.fetchval("select $1::json", value) == value
        assert await conn.fetchval("show application_name") == "penstock test"
        with pytest.raises(asyncpg.DataError, match="not JSON compliant"):
            await conn.fetchval("select $1::jsonb", {"x": float("nan")})
    await pool.close()


async def test_the_old_schema_of_a_server_is_refused_and_unchanged(blank: str) -> None:
    with pytest.raises(SchemaMismatch, match="penstock migrate up"):
        async with connect_ready(Settings(dsn=blank)):
            pytest.fail("it was let in")
    async with connect(Settings(dsn=blank)) as conn:
        assert await conn.fetchval("select to_regnamespace('penstock') is null")


async def test_without_an_address_the_embedded_database_is_started_and_migrated(
    tmp_path: Path,
) -> None:
    async with connect_ready(Settings(home=tmp_path / "home")) as conn:
        assert await conn.fetchval("select count(*) from penstock.migration") > 0
        assert not await conn.fetchval("select rolsuper from pg_roles where rolname = current_user")
