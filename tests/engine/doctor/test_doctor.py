"""The doctor: each finding, on a server that has its problem."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from penstock.base.settings import Settings
from penstock.engine.doctor import data, server, sessions
from penstock.engine.doctor.doctor import examine
from penstock.engine.doctor.finding import Finding
from support import factory
from support.clock import Clock
from support.cluster import OWNER, Cluster
from support.servers.pooler import pooled
from support.session_settings import Of, sessions_with

CHECKS = [
    "connection",
    "version",
    "schema",
    "pooler",
    "clock",
    "durability",
    "replication",
    "connections",
    "disk",
    "transactions",
    "settings",
    "locks",
    "rights",
    "tenants",
    "partitions",
    "workers",
    "loops",
    "queues",
    "liveness",
    "check",
]


async def found(dsn: str) -> dict[str, Finding]:
    return {finding.name: finding async for finding in examine(Settings(dsn=dsn))}


async def test_a_sound_database_has_only_ok_findings(migrated: str) -> None:
    findings = await found(migrated)
    assert list(findings) == CHECKS
    durability = findings.pop("durability")  # the test server gives it up for speed
    assert durability.level == "bad"
    assert "fsync is off: a crash of the machine can destroy the whole database" in (
        durability.message
    )
    assert durability.advice == (
        "Set fsync = on and full_page_writes = on and synchronous_commit = on."
    )
    assert {finding.level for finding in findings.values()} == {"ok"}
    assert OWNER in findings["rights"].message
    assert findings["disk"].message == "the server's disk cannot be checked from here"


async def test_an_unreachable_server_is_the_only_finding() -> None:
    dsn = "postgresql://u:open-sesame@127.0.0.1:1/jobs"
    findings = await found(dsn)
    assert list(findings) == ["connection"]
    assert findings["connection"].level == "bad"
    assert "127.0.0.1:1/jobs cannot be reached: Connection refused" in (
        findings["connection"].message
    )
    assert findings["connection"].advice == (
        "Start the server, or correct PENSTOCK_DSN (a file .env in this folder may set it)."
    )
    assert "open-sesame" not in repr(findings)


async def test_every_failure_to_connect_has_advice(database: str) -> None:
    for dsn, advice in (
        (database.replace(OWNER, "stranger", 1), "pg_hba.conf"),
        ("postgresql://u@nowhere.invalid/jobs", "Correct the host"),
        (database.replace("/test_", "/missing_", 1), "Create it first"),
        ("mysql://u@db.example/jobs", "PENSTOCK_DSN"),
    ):
        [finding] = (await found(dsn)).values()
        assert (finding.name, finding.level) == ("connection", "bad")
        assert advice in f"{finding.message}. {finding.advice}"
        assert finding.advice


async def test_a_database_without_schema_has_advice(blank: str) -> None:
    findings = await found(blank)
    assert findings["schema"] == Finding(
        "schema", "bad", "The database has no Penstock schema yet", "Run `penstock migrate up`."
    )
    assert "queues" not in findings


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize(
    ("change", "message", "advice"),
    [
        (
            "update penstock.migration set checksum = 'of another' where number = 1",
            "The tables of this database were created by another edition of migration 0001",
            "Run `penstock migrate down --to 0 --export FILE` with the program that created them",
        ),
        (
            "insert into penstock.migration (number, name, checksum) values (99, 'later', '')",
            "The database's schema is at migration 99, newer than this program",
            "Upgrade penstock here",
        ),
    ],
)
async def test_a_schema_that_this_program_cannot_repair_is_bad(
    migrated: str, *, embedded: bool, change: str, message: str, advice: str
) -> None:
    """The embedded one too: elsewhere its schema is installed at the first use."""
    conn = await asyncpg.connect(migrated)
    await conn.execute(change)
    finding = await data.schema(conn, embedded=embedded)
    assert finding.level == "bad"
    assert finding.message.startswith(message)
    assert str(finding.advice).startswith(advice)
    await conn.close()


async def test_a_transaction_pooler_is_found_and_all_checks_work_through_it(
    database: str,
) -> None:
    async with pooled(database) as dsn:
        findings = await found(dsn)
    assert list(findings) == CHECKS
    assert findings["pooler"].level == "warning"
    assert "pool_mode = session" in str(findings["pooler"].advice)
    assert findings["check"].level == "ok"


@pytest.mark.parametrize(("ahead", "word"), [(5, "ahead of"), (-5, "behind")])
async def test_clocks_that_differ_are_a_warning(
    database: str, monkeypatch: pytest.MonkeyPatch, ahead: int, word: str
) -> None:
    def now(zone: Any) -> datetime:
        return datetime.now(zone) - timedelta(seconds=ahead)

    monkeypatch.setattr(server, "datetime", SimpleNamespace(now=now))
    finding = (await found(database))["clock"]
    assert finding.level == "warning"
    assert f"5.0 s {word} this machine's" in finding.message


@pytest.mark.parametrize(
    ("name", "value", "level", "words"),
    [
        ("default_transaction_isolation", "serializable", "warning", "may be undone (40001)"),
        ("default_transaction_read_only", "on", "bad", "nothing can be submitted"),
        ("enable_indexscan", "off", "warning", "may take much longer"),
        ("statement_timeout", "2s", "ok", "own sessions override that"),
    ],
)
@pytest.mark.parametrize("of", ["database", "role"])
async def test_settings_of_sessions_are_named_with_their_source(  # noqa: PLR0917  # a table
    database: str, of: Of, name: str, value: str, level: str, words: str
) -> None:
    """D3"""
    with sessions_with(database, of, **{name: value}):
        finding = (await found(database))["settings"]
    assert finding.level == level
    assert f"{name} is {value} ({of} " in finding.message
    assert words in finding.message


async def test_triggers_that_do_not_run_are_bad(cluster: Cluster, database: str) -> None:
    """Only a superuser can set this, and only the ledger's own trigger protects it from changes."""
    admin = cluster.superuser_dsn(urlsplit(database).path[1:])
    with sessions_with(admin, "database", session_replication_role="replica"):
        finding = (await found(database))["settings"]
    assert finding.level == "bad"
    assert "nothing keeps the ledger from being changed" in finding.message


async def test_a_strange_session_that_keeps_a_lock_of_penstock_is_named(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LONG_SECONDS", 0.01)
    async with conn.transaction():
        await conn.execute("select pg_advisory_xact_lock(1886413172, 7)")
        finding = (await found(database))["locks"]
    assert finding.level == "bad"
    assert f"session {conn.get_server_pid()} of role {OWNER}" in finding.message
    assert "submits and changes of order (penstock.queue.id = 7)" in finding.message
    assert f"pg_terminate_backend({conn.get_server_pid()})" in str(finding.advice)


async def test_transactions_that_stay_open_are_named(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LONG_MINUTES", 0)
    await conn.execute("set application_name = 'report'")
    async with conn.transaction():
        finding = (await found(database))["transactions"]
    assert finding.level == "warning"
    assert f"process {conn.get_server_pid()} (report, idle in transaction)" in finding.message
    assert f"pg_terminate_backend({conn.get_server_pid()})" in str(finding.advice)


@pytest.mark.parametrize(
    ("limit", "check", "level"),
    [
        (("FULL_SHARE", 0.0), "connections", "warning"),
        (("SLOW_MS", -1), "connection", "warning"),
        (("OLDEST", 99), "version", "bad"),
        (("NEWEST", 1), "version", "warning"),
    ],
)
async def test_a_value_over_its_limit_is_reported(
    database: str, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, float], check: str, level: str
) -> None:
    monkeypatch.setattr(server, *limit)
    assert (await found(database))[check].level == level


async def test_the_disk_of_an_embedded_database_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await server.disk(tmp_path)).level == "ok"
    for free, level, words in ((1024**3, "warning", "1 GB free"), (1024**2, "bad", "1 MB free")):
        monkeypatch.setattr("shutil.disk_usage", _free(free))
        finding = await server.disk(tmp_path)
        assert (finding.level, finding.message) == (level, f"{words} for {tmp_path}")


def _free(size: int) -> Callable[[Path], SimpleNamespace]:
    return lambda _: SimpleNamespace(free=size)


async def test_a_superuser_is_a_warning(cluster: Cluster, database: str) -> None:
    finding = (await found(cluster.superuser_dsn(urlsplit(database).path[1:])))["rights"]
    assert (finding.level, "is a superuser" in finding.message) == ("warning", True)


async def test_missing_rights_of_a_role_are_named(stranger: str) -> None:
    findings = await found(stranger)
    assert findings["rights"].level == "bad"
    assert "may not execute" in findings["rights"].message
    assert "grant execute on all routines" in str(findings["rights"].advice)
    assert findings["check"].level == "bad", "a check that is not possible is not ok"
    assert str(findings["check"].advice).startswith("Grant it: `grant usage on schema penstock")


async def test_a_role_without_any_right_has_advice(cluster: Cluster, database: str) -> None:
    role = f"app_{uuid4().hex[:12]}"
    admin = await asyncpg.connect(cluster.superuser_dsn(urlsplit(database).path[1:]))
    await admin.execute(f"create role {role} login")
    try:
        finding = (await found(database.replace(OWNER, role, 1)))["schema"]
    finally:
        await admin.execute(f"drop role {role}")
        await admin.close()
    assert finding.level == "bad"
    assert finding.message.startswith("The database role lacks a right: permission denied")
    assert "grant usage on schema penstock" in str(finding.advice)


async def test_a_handler_that_blocks_its_worker_is_named_with_its_line(
    database: str, conn: asyncpg.Connection
) -> None:
    """D2"""
    assert (await found(database))["loops"].level == "ok"
    worker = await factory.worker(conn, "gpu-1")
    job = uuid4()
    blocked = "select penstock.report_blocked_loop($1, 1, 14, $2, $3, 1, 'mark', 'marks.py:12')"
    for over, level in ((False, "bad"), (True, "warning")):
        await conn.execute(blocked, worker, over, job)
        finding = (await found(database))["loops"]
        assert finding.level == level
        assert finding.message.startswith("stood still 1 time within a day, last for 14.")
        assert finding.message.endswith(
            "s in worker gpu-1 by a handler of kind mark, at marks.py:12"
        )
        assert "asyncio.to_thread" in str(finding.advice)


async def test_jobs_that_no_worker_starts_are_bad_and_paused_queues_a_warning(
    database: str, conn: asyncpg.Connection
) -> None:
    await factory.queue(conn, "a")
    await factory.submit(conn, "a")
    finding = (await found(database))["queues"]
    assert (finding.level, finding.message) == ("bad", "1 job queued in a and no worker is alive")
    await factory.worker(conn)
    assert (await found(database))["queues"].level == "ok"
    await conn.execute("select penstock.pause_queue('a', 'the bill')")
    finding = (await found(database))["queues"]
    assert finding.level == "warning"
    assert finding.message == "a is paused (the bill) with 1 job queued"
    assert finding.advice == "`penstock resume a`."


async def test_jobs_of_a_kind_that_no_worker_has_are_named(
    database: str, conn: asyncpg.Connection
) -> None:
    """D1: with what to do about a kind that was removed or renamed."""
    await factory.queue(conn, "a")
    await factory.kind(conn, "old", "a")
    await factory.submit_rows(conn, [{"kind": "old"}] * 2)
    await factory.worker(conn, queues=["a"], kinds=["a"])
    finding = (await found(database))["queues"]
    assert (finding.level, finding.message) == (
        "bad",
        "no live worker has a handler for kind old (2 jobs queued in a)",
    )
    assert "Was it renamed or removed? Keep its handler until" in str(finding.advice)


async def test_a_queue_that_no_worker_serves_is_bad_although_others_are_served(
    database: str, conn: asyncpg.Connection
) -> None:
    """D1: the app of all workers has renamed it, or moved its kinds to another queue."""
    for name in ("old", "new"):
        await factory.queue(conn, name)
        await factory.submit_rows(conn, [{"kind": name}] * 2)
    await factory.worker(conn, queues=["new"], kinds=["new"])
    finding = (await found(database))["queues"]
    assert (finding.level, finding.message) == (
        "bad",
        "2 jobs queued in old and no live worker serves it",
    )
    assert "Was it renamed" in str(finding.advice)
    # A paused queue says so, and one that calls from outside drive needs no worker.
    await conn.execute("select penstock.pause_queue('old')")
    assert (await found(database))["queues"].level == "warning"


async def test_lost_workers_and_missing_partitions_are_warnings(
    database: str, conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    await factory.worker(conn, "frail")
    await clock.advance("1m")
    finding = (await found(database))["workers"]
    assert (finding.level, finding.message) == ("warning", "0 workers alive; silent: frail")
    await factory.recover(conn)
    await factory.worker(conn, "strong")
    finding = (await found(database))["workers"]
    assert finding.message == "1 worker alive: strong; lost within a day: frail"
    await clock.advance("12d")
    finding = (await found(database))["partitions"]
    assert finding.level == "warning"
    assert "Keep a worker running" in str(finding.advice)


@pytest.mark.unsound
async def test_a_broken_invariant_is_bad(database: str, conn: asyncpg.Connection) -> None:
    await conn.execute("update penstock.account set running = 7 where id = 0")
    finding = (await found(database))["check"]
    assert finding.level == "bad"
    assert finding.message.startswith("an invariant is broken in 1 place, first: L5")


@pytest.mark.unsound
async def test_a_check_that_takes_too_long_is_skipped_with_advice(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await conn.execute(
        "create or replace function penstock.check()"
        " returns table (invariant text, subject text, detail text)"
        " language sql stable security definer set search_path = pg_catalog, pg_temp"
        " as $$ select '', '', '' from pg_sleep(60) $$"
    )
    monkeypatch.setattr(data, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(data, "schema", _current)
    finding = (await found(database))["check"]
    assert finding.level == "warning"
    assert "Run `penstock check`" in str(finding.advice)


async def _current(conn: asyncpg.Connection, *, embedded: bool) -> Finding:
    assert conn
    assert not embedded
    return Finding("schema", "ok", "")
