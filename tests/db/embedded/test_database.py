"""The embedded Postgres, with real servers and real processes: first use, sharing, leaving."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import asyncpg
import pytest

from penstock.base.settings import Settings
from penstock.db.embedded.database import Embedded
from penstock.security.roots import read_roots
from support.db.embedded_uses import (
    DEADLINE_SECONDS,
    QUICK,
    Process,
    ask,
    do,
    quiet_forks,
    runs,
    starts,
)

pytestmark = quiet_forks


def test_first_use_creates_a_durable_cluster_and_an_ordinary_owner(home: Path) -> None:
    with Embedded.use(home) as use:
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            assert ask(use.dsn, f"show {setting}") == "on"
        assert ask(use.dsn, "show listen_addresses") == ""
        assert ask(use.dsn, "show timezone") == "UTC"
        assert ask(use.dsn, "show max_connections") == "200"
        assert ask(use.dsn, "show server_encoding") == "UTF8"
        letters = "select string_agg(t, '' order by t) from unnest('{b,B,a,ä,Z}'::text[]) t"
        assert ask(use.dsn, letters) == "BZabä"
        privileges = "rolsuper or rolcreatedb or rolcreaterole or rolreplication or rolbypassrls"
        assert ask(use.dsn, f"select {privileges} from pg_roles where rolname = user") is False
        owner = "select datdba::regrole::text from pg_database where datname = 'penstock'"
        assert ask(use.dsn, owner) == "penstock"
        do(use.dsn, "create schema app")
        assert ask(use.admin_dsn, "select rolsuper from pg_roles where rolname = user") is True
        assert home.stat().st_mode & 0o777 == 0o700
        assert (home / ".gitignore").read_text() == "*\n"
    assert not runs(home)


def test_both_drivers_understand_the_address(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "1")  # The address is complete; the environment changes nothing.
    monkeypatch.setenv("PGHOST", "nowhere.invalid")

    async def fetch(dsn: str) -> object:
        conn = await asyncpg.connect(dsn)
        try:
            return await conn.fetchval("select current_user")
        finally:
            await conn.close()

    with Embedded.use(made, settings=QUICK) as use:
        assert asyncio.run(fetch(use.dsn)) == "penstock"
        assert ask(use.dsn, "select current_user") == "penstock"


def test_a_project_folder_as_home_keeps_its_gitignore_choice(home: Path) -> None:
    home.mkdir()
    Embedded.use(home, settings=QUICK).leave()
    assert not (home / ".gitignore").exists()


def test_several_uses_in_one_process_are_counted(made: Path) -> None:
    first, second = (Embedded.use(made, settings=QUICK) for _ in range(2))
    first.leave()
    first.leave()
    assert ask(second.dsn, "select 1") == 1
    second.leave()
    assert not runs(made)


def test_another_process_uses_it_and_the_last_one_stops_it(made: Path) -> None:
    other = Process(made)
    dsn = other.dsn()
    with Embedded.use(made) as use:
        assert use.dsn == dsn
        assert ask(use.dsn, "show fsync") == "off"  # The server that the other process started.
        other.leave()
        assert ask(use.dsn, "select 1") == 1
    assert not runs(made)
    assert starts(made) == 1


def test_data_outlives_the_server(made: Path) -> None:
    with Embedded.use(made) as use:
        do(use.dsn, "create table kept as select 42 as answer")
    with Embedded.use(made) as use:
        assert ask(use.dsn, "select answer from kept") == 42
    assert starts(made) == 2


def test_eight_processes_at_once_create_one_cluster_and_one_server(home: Path) -> None:
    processes = [Process(home) for _ in range(8)]
    dsns = {process.dsn() for process in processes}
    assert len(dsns) == 1
    dsn = dsns.pop()
    do(dsn, "create table seen (n int)")
    assert starts(home) == 1
    assert not list(home.glob("postgres.new-*"))
    for process in processes:
        assert ask(dsn, "select count(*) from seen") == 0
        process.popen.stdin.close()  # type: ignore[union-attr]  # All leave at the same time.
        process.popen.stdin = None
    for process in processes:
        process.leave()
    assert not runs(home)
    assert starts(home) == 1


def test_threads_at_once_share_one_server(made: Path) -> None:
    def visit() -> None:
        with Embedded.use(made, settings=QUICK) as use:
            assert ask(use.dsn, "select 1") == 1
            done.append(use)

    done: list[Embedded] = []
    threads = [threading.Thread(target=visit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert len(done) == len(threads)
    assert not runs(made)


def test_a_forked_child_does_not_stop_it_for_its_parent(made: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from penstock.db.embedded.database import Embedded
use = Embedded.use(Path(sys.argv[1]), settings={"fsync": "off"})
if os.fork() == 0:
    use.leave()
    sys.exit()  # Runs the exit handlers that the parent registered.
os.wait()
again = Embedded.use(Path(sys.argv[1]))
"""
    run = [sys.executable, "-c", script, str(made)]
    subprocess.run(run, check=True, timeout=DEADLINE_SECONDS)
    assert starts(made) == 1
    assert not runs(made)


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(made: Path) -> None:
    use = Embedded.use(made, settings=QUICK)
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        os.read(hold, 1)
        os._exit(0)
    try:
        use.leave()
        assert not runs(made)
    finally:
        os.close(release)
        os.close(hold)
        os.waitpid(child, 0)


def test_a_secret_created_before_the_database_is_hidden_from_git_too(
    home: Path,
) -> None:
    read_roots(Settings(home=home))
    assert (home / ".gitignore").read_text() == "*\n"
