"""Up, down and the refusals, with small test schemas; tests/contract tests the real one."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from penstock.db.schema import migrations, version
from penstock.db.schema.transfer import Imported, import_jobs
from penstock.errors import (
    Conflict,
    Invalid,
    MigrationFailed,
    Misconfigured,
    SchemaMismatch,
    Unavailable,
)
from support.cluster import OWNER, Cluster
from support.db.small_schemas import ONE, TWO, Folder, names
from support.waiting import eventually


async def test_up_creates_everything_and_a_second_up_nothing(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    wanted = schema(TWO)
    moved = await migrations.up(conn, wanted)
    assert moved == migrations.Moved(2, ("0001_jobs", "0002_owner"), functions_loaded=True)
    assert {"job", "migration", "schema_info", "totals", "clock", "zone_of"} <= await names(conn)
    await version.require_served(conn, wanted)
    assert await migrations.up(conn, wanted) == migrations.Moved(2, ())


async def test_the_owner_of_an_existing_schema_needs_no_right_to_create_one(
    cluster: Cluster, schema: Folder
) -> None:
    with cluster.database(template=None) as name:
        admin = await asyncpg.connect(cluster.superuser_dsn(name))
        await admin.execute(
            f"alter database {name} owner to current_user;"
            f"revoke create on database {name} from public;"
            f"create schema penstock authorization {OWNER}"
        )
        await admin.close()
        conn = await asyncpg.connect(cluster.dsn(name))
        assert (await migrations.up(conn, schema(ONE))).current == 1
        await conn.close()


async def test_the_error_for_a_role_without_rights_names_the_right_role(
    cluster: Cluster, schema: Folder
) -> None:
    with cluster.database(template=None) as name:
        admin = await asyncpg.connect(cluster.superuser_dsn(name))
        await admin.execute(f"alter database {name} owner to current_user")
        await admin.close()
        conn = await asyncpg.connect(cluster.dsn(name))
        with pytest.raises(MigrationFailed, match=r"permission denied.*as the owner"):
            await migrations.up(conn, schema(ONE))
        await conn.close()


async def test_status_lists_pending_migrations_and_changes_nothing(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    found = await version.status(conn, schema(TWO))
    assert (found.current, found.wanted) == (0, 2)
    assert found.pending == ("0001_jobs", "0002_owner")
    assert not found.is_current
    assert await names(conn) == set()


async def test_an_old_schema_is_refused_with_a_remedy(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    with pytest.raises(SchemaMismatch, match="no Penstock schema yet: run `penstock migrate up`"):
        await version.require_served(conn, schema(ONE))
    await migrations.up(conn, schema(ONE))
    with pytest.raises(SchemaMismatch, match="at migration 1 and this program needs 2: run `pen"):
        await version.require_served(conn, schema(TWO))
    with pytest.raises(
        SchemaMismatch, match=r"functions .* not the ones that this program needs: run `pens"
    ):
        await version.require_served(conn, schema({**ONE, "functions/base/more.sql": "select 1;"}))


async def test_a_newer_schema_is_refused_by_every_command(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    await migrations.up(conn, schema(TWO))
    older = schema(ONE)
    for refused in (version.require_served(conn, older), migrations.up(conn, older)):
        with pytest.raises(SchemaMismatch, match=r"migration 2, newer.*knows 1.*down --to 1"):
            await refused
    with pytest.raises(SchemaMismatch, match="newer"):
        await migrations.down(conn, schema=older)


async def test_an_edited_migration_is_refused_by_name(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    await migrations.up(conn, schema(TWO))
    edited = schema({**TWO, "migrations/0002_owner/up.sql": "-- Another comment."})
    found = await version.status(conn, edited)
    assert (found.changed, found.is_served, found.other_tables) == (("0002_owner",), False, False)
    for refused in (version.require_served(conn, edited), migrations.up(conn, edited)):
        with pytest.raises(SchemaMismatch, match="0002_owner was edited after it was applied"):
            await refused
    assert (await migrations.down(conn, to=0, schema=edited)).current == 0


@pytest.mark.parametrize("there", [ONE, TWO], ids=["the same number", "a longer chain"])
async def test_tables_of_another_first_migration_are_refused_with_a_remedy(
    conn: asyncpg.Connection, schema: Folder, there: dict[str, str]
) -> None:
    """Until the first release 0001 is edited; no migration converts tables of another edition."""
    await migrations.up(conn, schema(there))
    before = await names(conn)
    # The functions are the same, so their checksum does not show the difference.
    other = schema({**ONE, "migrations/0001_jobs/up.sql": "create table penstock.job ();"})
    found = await version.status(conn, other)
    assert (found.other_tables, found.is_current, found.is_served) == (True, False, False)
    for refused in (
        version.require_served(conn, other),
        version.admit(conn, other),
        migrations.up(conn, other),
        migrations.down(conn, schema=other),
        migrations.down(conn, to=0, schema=other),
    ):
        with pytest.raises(SchemaMismatch, match=r"another edition of migration 0001.*--export"):
            await refused
    assert await names(conn) == before


async def test_an_older_program_with_another_first_migration_is_not_served(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    one = schema({**ONE, "migrations/0001_jobs/up.sql": "create table penstock.job ();"})
    await migrations.up(conn, schema(TWO))
    await version.note(conn, 1, one.functions_checksum)
    await conn.execute(
        "update penstock.schema_info set previous_checksum = $1", one.functions_checksum
    )
    found = await version.status(conn, one)
    assert (found.is_previous, found.is_served) == (True, False)


async def test_a_way_up_of_several_files_runs_in_the_order_of_their_numbers(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    files = {name: text for name, text in ONE.items() if name != "migrations/0001_jobs/up.sql"}
    files["migrations/0001_jobs/up_02_note.sql"] = "alter table penstock.job add note text;"
    files["migrations/0001_jobs/up_01_job.sql"] = "create table penstock.job (id int primary key);"
    wanted = schema(files)
    [migration] = wanted.migrations
    assert [script.name for script in migration.up] == [
        "0001_jobs/up_01_job.sql",
        "0001_jobs/up_02_note.sql",
    ]
    assert (await migrations.up(conn, wanted)).migrations == ("0001_jobs",)
    edited = schema({**files, "migrations/0001_jobs/up_02_note.sql": "-- Nothing."})
    assert (await version.status(conn, edited)).other_tables


@pytest.mark.parametrize(
    ("text", "says"),
    [
        # Postgres finds this error while parsing, and reports its position.
        ("create table penstock.a (id int);\n\ncreate table penstock.b (\n  id nonsense\n);", 4),
        # Postgres finds these errors while running and reports no position: the message has the
        # line of the statement instead.
        ("create table penstock.a (id int);\n-- why\ncreate table penstock.a (id int);", 3),
        ('\nselect \'a;b\', $x$ ; $x$, "c;d" from (select 1 as "c;d") q;\nselect 1/0;\n', 3),
        ("/* ; */ select 1; -- ; it's\nselect E'\\';';\nselect 1/0", 3),
    ],
)
async def test_an_error_names_file_and_line_and_changes_nothing(
    conn: asyncpg.Connection, schema: Folder, text: str, says: int
) -> None:
    wanted = schema({**TWO, "migrations/0002_owner/up.sql": text})
    with pytest.raises(MigrationFailed, match=rf"^0002_owner/up\.sql, line {says}: "):
        await migrations.up(conn, wanted)
    assert await names(conn) == set()


async def test_a_name_without_its_schema_is_not_found(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    await conn.execute("create table public.stranger (id int)")
    wanted = schema({**TWO, "migrations/0002_owner/up.sql": "alter table stranger add owner text;"})
    with pytest.raises(MigrationFailed, match='relation "stranger" does not exist'):
        await migrations.up(conn, wanted)


async def test_one_step_down_keeps_jobs_and_drops_functions_until_the_next_up(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    """F10"""
    wanted = schema(TWO)
    await migrations.up(conn, wanted)
    await conn.execute("insert into penstock.job values (1, 'kept', 'o')")
    assert await migrations.down(conn, schema=wanted) == migrations.Moved(1, ("0002_owner",))
    assert await names(conn) == {"job", "migration", "schema_info"}
    older = schema(ONE)
    with pytest.raises(SchemaMismatch, match="run `penstock migrate up`"):
        await version.require_served(conn, older)
    assert (await migrations.up(conn, older)).functions_loaded
    assert await conn.fetchval("select jobs from penstock.totals") == 1
    assert (await migrations.up(conn, wanted)).migrations == ("0002_owner",)
    assert await conn.fetchval("select note from penstock.job") == "kept"


async def test_to_zero_removes_everything(conn: asyncpg.Connection, schema: Folder) -> None:
    wanted = schema(TWO)
    await migrations.up(conn, wanted)
    moved = await migrations.down(conn, to=0, schema=wanted)
    assert moved == migrations.Moved(0, ("0002_owner", "0001_jobs"))
    assert await conn.fetchval("select to_regnamespace('penstock') is null")
    assert await migrations.down(conn, schema=wanted) == migrations.Moved(0, ())


async def test_to_zero_refuses_live_jobs_unless_they_are_exported(
    conn: asyncpg.Connection, schema: Folder, tmp_path: Path
) -> None:
    """F10"""
    wanted = schema(ONE)
    await migrations.up(conn, wanted)
    many = 1_201  # more than one fetch returns
    await conn.execute(f"insert into penstock.job select n, 'é' from generate_series(1, {many}) n")
    with pytest.raises(Conflict, match=r"1201 live jobs would be lost.*--export FILE"):
        await migrations.down(conn, schema=wanted)
    file = tmp_path / "jobs.jsonl"
    moved = await migrations.down(conn, export=file, schema=wanted)
    assert moved.jobs_exported == many
    assert file.stat().st_mode & 0o777 == 0o600
    await migrations.up(conn, wanted)
    assert await import_jobs(conn, file) == Imported(many, 0)
    assert await import_jobs(conn, file) == Imported(0, many)
    assert await conn.fetchval("select count(*) from penstock.job where note = 'é'") == many


async def test_a_job_submitted_while_the_schema_is_dropped_is_not_lost(
    blank: str, conn: asyncpg.Connection, schema: Folder
) -> None:
    wanted = schema(ONE)
    await migrations.up(conn, wanted)
    app, watcher = await asyncpg.connect(blank), await asyncpg.connect(blank)
    submit = app.transaction()
    await submit.start()
    await app.execute("insert into penstock.job values (1, 'in flight')")
    going = asyncio.create_task(migrations.down(conn, schema=wanted))
    waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = $1"
    pid = conn.get_server_pid()
    await eventually(lambda: watcher.fetchval(waits, pid), "the migration waits for the submit")
    await submit.commit()
    with pytest.raises(Conflict, match="1 live job would be lost"):
        await going
    assert await watcher.fetchval("select note from penstock.job") == "in flight"
    await app.close()
    await watcher.close()


async def test_an_export_never_replaces_a_file_and_is_removed_after_a_failure(
    conn: asyncpg.Connection, schema: Folder, tmp_path: Path
) -> None:
    wanted = schema({**ONE, "migrations/0001_jobs/down.sql": "select 1/0;"})
    await migrations.up(conn, wanted)
    await conn.execute("insert into penstock.job values (1, 'x')")
    file = tmp_path / "jobs.jsonl"
    with pytest.raises(MigrationFailed, match=r"0001_jobs/down\.sql, line 1: division by zero"):
        await migrations.down(conn, export=file, schema=wanted)
    assert not file.exists()
    file.write_text("precious")
    with pytest.raises(Invalid, match="exists already"):
        await migrations.down(conn, export=file, schema=wanted)
    assert file.read_text() == "precious"
    with pytest.raises(Invalid, match="No such file or directory"):
        await migrations.down(conn, export=tmp_path / "no" / "jobs", schema=wanted)


async def test_an_import_is_atomic(
    conn: asyncpg.Connection, schema: Folder, tmp_path: Path
) -> None:
    await migrations.up(conn, schema(ONE))
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"id": 1}\n{"id": 2\n')
    with pytest.raises(Invalid, match=r"line 2: .*; nothing was imported"):
        await import_jobs(conn, file)
    assert await conn.fetchval("select count(*) from penstock.job") == 0
    with pytest.raises(Invalid, match="cannot read"):
        await import_jobs(conn, tmp_path / "missing")


async def test_invalid_targets_are_refused(
    conn: asyncpg.Connection, schema: Folder, tmp_path: Path
) -> None:
    wanted = schema(TWO)
    await migrations.up(conn, wanted)
    for odd in (-1, 3):
        with pytest.raises(Invalid, match="it may be 0 to 2"):
            await migrations.down(conn, to=odd, schema=wanted)
    with pytest.raises(Invalid, match="keeps the jobs"):
        await migrations.down(conn, to=1, export=tmp_path / "x", schema=wanted)


async def test_a_users_object_in_our_schema_is_not_dropped(
    conn: asyncpg.Connection, schema: Folder
) -> None:
    wanted = schema(ONE)
    await migrations.up(conn, wanted)
    await conn.execute("create table penstock.mine (id int)")
    with pytest.raises(MigrationFailed, match=r"penstock\.mine depends on.*not Penstock's: move"):
        await migrations.down(conn, schema=wanted)


async def test_many_migrators_at_once_migrate_once(blank: str, schema: Folder) -> None:
    wanted = schema(TWO)
    conns = [await asyncpg.connect(blank) for _ in range(8)]
    moved = await asyncio.gather(*(migrations.up(conn, wanted) for conn in conns))
    assert sorted(len(one.migrations) for one in moved) == [0] * 7 + [2]
    for conn in conns:
        await conn.close()


async def test_a_second_migration_gives_up_with_an_error_if_the_first_takes_long(
    blank: str, conn: asyncpg.Connection, schema: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "TWIN_WAIT", "50ms")
    other = await asyncpg.connect(blank)
    async with other.transaction():
        await other.execute("select pg_advisory_xact_lock($1)", migrations.LOCK_KEY)
        with pytest.raises(Conflict, match="Another migration is running") as caught:
            await migrations.up(conn, schema(ONE))
    assert caught.value.code == "migration_in_progress"
    await other.close()


async def test_a_connection_lost_during_a_migration_is_unavailable(
    blank: str, conn: asyncpg.Connection, schema: Folder
) -> None:
    suicide = "select pg_terminate_backend(pg_backend_pid());"
    with pytest.raises(Unavailable):
        await migrations.up(conn, schema({**ONE, "migrations/0001_jobs/up.sql": suicide}))
    fresh = await asyncpg.connect(blank)
    assert await names(fresh) == set()
    await fresh.close()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"migrations/0002_a/up.sql": "", "migrations/0002_a/down.sql": ""}, "0002_a is out of"),
        ({"migrations/0001_a/up.sql": ""}, "0001 comes next, with an up.sql and a down.sql"),
        ({"migrations/0001_a/down.sql": ""}, "0001 comes next, with an up.sql and a down.sql"),
        ({"migrations/first.sql": ""}, "first.sql is not a folder named like"),
        ({"migrations/first/up.sql": ""}, "first is not a folder named like"),
        ({**ONE, "migrations/0001_jobs/upwards.sql": ""}, "0001_jobs/upwards.sql is not named"),
    ],
)
def test_migrations_have_no_gaps_and_all_have_a_way_down(
    schema: Folder, files: dict[str, str], says: str
) -> None:
    with pytest.raises(Misconfigured, match=says):
        schema(files)
