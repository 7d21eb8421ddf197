"""A rolling upgrade under load: two versions side by side, without an effect for clients.

Old workers and an old API run; the new version's `penstock migrate up` migrates the schema under
them; new programs start, an old one is restarted, the old ones stop. Every request is answered,
every job finishes once, and no request waits for long.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest

from penstock.db.schema import migrations
from support.cluster import assert_sound
from support.connections import connections
from support.shapes import Connect, Scale
from support.waiting import eventually
from upgrade import packages
from upgrade.packages import Package
from upgrade.programs import Program, Server, Site, site
from upgrade.traffic import Traffic

pytestmark = pytest.mark.timeout(1_200)

# On a busy machine. The long form prints the measured times.
STALL_SECONDS = 5.0
# About the duration of an `up`, so that kills hit every moment of it.
LONGEST_LIFE_SECONDS = 0.8
NOTICE = "fine during an upgrade, replace this program soon"


@dataclass
class Upgrade:
    """A database at the old version, with its programs and load."""

    old: Package
    new: Package
    dsn: str
    site: Site
    conn: asyncpg.Connection
    traffic: Traffic
    ups: list[float] = field(default_factory=list)
    """How long each `penstock migrate up` took, including the start of the program."""

    async def up(self, package: Package | None = None) -> None:
        began = time.monotonic()
        await asyncio.to_thread((package or self.new).run, self.dsn, "migrate", "up")
        self.ups.append(time.monotonic() - began)

    async def up_again(self) -> None:
        """Load the functions once more; the schema serves the program that it served before."""
        served = await self.conn.fetchrow(
            "select previous_number, previous_checksum from penstock.schema_info"
        )
        assert served is not None
        await self.conn.execute("update penstock.schema_info set functions_checksum = null")
        await self.up()
        await self.conn.execute(
            "update penstock.schema_info set previous_number = $1, previous_checksum = $2", *served
        )

    async def old_ones(self) -> tuple[list[Program], Server]:
        workers = [self.site.begin_worker(self.old, f"worker-{n}") for n in (1, 2)]
        server = await self.site.serve(self.old, "api")
        for worker in workers:
            await worker.until_said(" serves ")
        return workers, server

    def figures(self) -> str:
        t = self.traffic
        ups = ", ".join(f"{seconds:.1f}" for seconds in self.ups)
        return (
            f"{self.old.name} to {self.new.name}: {len(t.jobs)} jobs, {len(t.asked)} requests,"
            f" longest {t.longest.seconds * 1000:.0f} ms ({t.longest.what}); ups of {ups} s;"
            f" {t.watched} streams, {t.changes} changes"
        )


@pytest.fixture(autouse=True)
def _figures(capsys: pytest.CaptureFixture[str], scale: Scale) -> Iterator[None]:
    """Return the figures that the long form prints."""
    yield
    if scale(False, True):
        with capsys.disabled():
            print(capsys.readouterr().out)


@pytest.fixture
async def connect_more(blank: str) -> AsyncIterator[Connect]:
    async with connections(blank) as connect:
        yield connect


@pytest.fixture
async def conn(connect_more: Connect) -> asyncpg.Connection:
    return await connect_more()


@pytest.fixture
async def programs(blank: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(blank, tmp_path) as made:
        yield made


async def begin(old: Package, new: Package, programs: Site, conn: asyncpg.Connection) -> Upgrade:
    await asyncio.to_thread(old.run, programs.dsn, "migrate", "up")
    traffic = Traffic(programs, conn)
    await traffic.prepare()
    return Upgrade(old, new, programs.dsn, programs, conn, traffic)


async def restarted(upgrade: Upgrade, worker: Program) -> Program:
    """Restart an old worker on the schema that has replaced its own."""
    await worker.leave()
    again = upgrade.site.begin_worker(upgrade.old, "worker-again")
    await again.until_said(" serves ")
    assert again.said.count(NOTICE) == 1
    return again


@pytest.mark.parametrize("step", packages.STEPS)
async def test_old_programs_work_while_new_ones_replace_them(
    step: str, programs: Site, conn: asyncpg.Connection, tmp_path: Path, scale: Scale
) -> None:
    """R-F27: from this version to one with other tables and functions; from the last to this."""
    upgrade = await begin(*packages.step(step, tmp_path), programs, conn)
    workers, server = await upgrade.old_ones()
    async with upgrade.traffic.flowing():
        await upgrade.traffic.some_more()
        await upgrade.up()
        ready = await server.client.get("/readyz")
        assert ready.is_success, ready.text
        said = await asyncio.to_thread(upgrade.old.run, upgrade.dsn, "migrate", "status")
        assert "still served" in said
        for _ in range(scale(1, 20)):
            await upgrade.up_again()
            await upgrade.traffic.some_more(5)
        await roll(upgrade, workers, server)
    await judge(upgrade)
    if scale(False, upgrade.new.name == "next"):
        await go_back_and_forth(upgrade)


async def go_back_and_forth(upgrade: Upgrade) -> None:
    """Like in the guide: no program runs, jobs stay, each `up` loads its program's functions."""
    old, new = upgrade.old, upgrade.new
    for program in upgrade.site.programs:
        program.kill()
    ended = await upgrade.conn.fetchval("select count(*) from penstock.finished")
    job = await upgrade.conn.fetchval("select (penstock.submit_job('quick', '{}') ->> 'id')::uuid")
    for _ in range(10):
        await asyncio.to_thread(new.run, upgrade.dsn, "migrate", "down", "--to", _number(old))
        for package in (old, new):
            said = await asyncio.to_thread(package.run, upgrade.dsn, "migrate", "status")
            assert "migrate up" in said
        await upgrade.up(old)
        assert_sound(upgrade.dsn)
        await upgrade.up(new)
        assert_sound(upgrade.dsn)
    assert await upgrade.conn.fetchval("select count(*) from penstock.finished") == ended
    assert await upgrade.conn.fetchval("select id from penstock.job") == job


def _number(package: Package) -> str:
    return str(package.schema.wanted)


async def test_a_killed_up_changes_nothing(
    programs: Site, conn: asyncpg.Connection, tmp_path: Path, connect_more: Connect, scale: Scale
) -> None:
    """R-F27: at any moment; while it waits for a long transaction, other sessions do not."""
    this = packages.this(tmp_path)
    upgrade = await begin(this, packages.following(this, tmp_path), programs, conn)
    await programs.worker(upgrade.old, "worker-1")
    await programs.serve(upgrade.old, "api")
    before, other = await prints(conn), await connect_more()
    async with upgrade.traffic.flowing():
        await upgrade.traffic.some_more()
        async with other.transaction():
            await other.execute("select from penstock.schema_info for update")  # its last step
            for number in range(scale(2, 40)):
                moment = _HOLDS if number % 2 else _AT_WORK
                await killed(upgrade, moment, random.uniform(0, LONGEST_LIFE_SECONDS))
                assert await prints(conn) == before
        async with other.transaction():
            await other.execute("select from penstock.job")
            began = time.monotonic()
            await killed(upgrade, _WAITS, 0)
            assert await prints(conn) == before
            with upgrade.new.start(upgrade.dsn, "migrate", "up") as going:
                for _ in range(3):
                    await eventually(lambda: conn.fetchval(_WAITS), "it waits", seconds=30)
                    await upgrade.traffic.some_more(5)
                stall = upgrade.traffic.longest_since(began)
                await other.execute("rollback; begin")
                out, _ = await asyncio.to_thread(going.communicate)
            assert going.returncode == 0, out
        await upgrade.traffic.some_more()
    print(f"beside a long transaction the longest request took {stall * 1000:.0f} ms")
    await judge(upgrade)
    assert "loaded" not in await asyncio.to_thread(upgrade.new.run, upgrade.dsn, "migrate", "up")


async def killed(upgrade: Upgrade, moment: str, seconds: float) -> None:
    """Start an `up` and kill it some time after an event; return when the server has noticed."""
    with upgrade.new.start(upgrade.dsn, "migrate", "up") as process:
        await eventually(lambda: upgrade.conn.fetchval(moment), "it is at work", seconds=30)
        await asyncio.sleep(seconds)
        process.kill()
    gone = f"select not ({_AT_WORK.removeprefix('select')})"
    await eventually(lambda: upgrade.conn.fetchval(gone), "the server notices", seconds=30)


async def prints(conn: asyncpg.Connection) -> str:
    """Return a digest of the schema: functions, columns, indexes, and the runner's tables."""
    found: str = await conn.fetchval(_PRINT)
    return found


# It holds the lock of a migration.
_AT_WORK = f"""
select exists (select from pg_locks where locktype = 'advisory' and granted
  and database = (select oid from pg_database where datname = current_database())
  and (classid::bigint << 32) | objid::bigint = {migrations.LOCK_KEY})
"""
_HOLDS = """
select exists (select from pg_locks where granted and mode = 'AccessExclusiveLock'
  and relation = 'penstock.job'::regclass)
"""
_WAITS = """
select exists (select from pg_locks where not granted and mode = 'AccessExclusiveLock'
  and relation = 'penstock.job'::regclass)
"""
_PRINT = """
select md5(concat(
  (select string_agg(pg_get_functiondef(oid), '' order by oid) from pg_proc
   where pronamespace = 'penstock'::regnamespace),
  (select string_agg(concat(attrelid, attname, atttypid), '' order by attrelid, attnum)
   from pg_attribute join pg_class c on c.oid = attrelid
   where relnamespace = 'penstock'::regnamespace and not relispartition and relkind <> 'i'),
  (select string_agg(indexdef, '' order by indexname) from pg_indexes where schemaname = 'penstock'
   and tablename !~ '_[0-9]{8}$'),
  (select to_jsonb(i) from penstock.schema_info i),
  (select string_agg(m::text, '' order by number) from penstock.migration m)))
"""


async def roll(upgrade: Upgrade, workers: list[Program], server: Server) -> None:
    """Start new programs, restart an old one, and stop the old ones."""
    site, traffic = upgrade.site, upgrade.traffic
    joined = site.begin_worker(upgrade.new, "worker")
    await site.serve(upgrade.new, "api")
    await joined.until_said(" serves ")
    await traffic.some_more()
    again = await restarted(upgrade, workers[0])
    await traffic.some_more()
    leaving = [workers[1], *([again] if again.process.poll() is None else [])]
    await asyncio.gather(site.retire(server), *(worker.leave() for worker in leaving))
    await traffic.some_more()
    by = {name for _, _, name in site.ran()}
    assert {f"{upgrade.old.name}-worker-1", f"{upgrade.new.name}-worker"} <= by


async def judge(upgrade: Upgrade) -> None:
    print(
        f"\n{upgrade.figures()}; no job ended for"
        f" {await upgrade.traffic.longest_rest():.2f} s at most"
    )
    await upgrade.traffic.judge()
    assert upgrade.traffic.longest.seconds < STALL_SECONDS
    assert_sound(upgrade.dsn)
