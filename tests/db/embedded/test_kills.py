"""The embedded Postgres after `kill -9` of its starter, of its processes, or of its creation."""

import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from penstock.db.embedded import server
from penstock.db.embedded.database import Embedded
from support.db.embedded_uses import (
    DEADLINE_SECONDS,
    QUICK,
    ROOT,
    Process,
    ask,
    do,
    log_of,
    postmaster,
    quiet_forks,
    runs,
    wait_for,
)

pytestmark = quiet_forks


def test_the_server_survives_its_killed_starter_and_is_used_again(made: Path) -> None:
    starter = Process(made)
    dsn = starter.dsn()
    pid = postmaster(made)
    starter.kill()
    with Embedded.use(made) as use:
        assert use.dsn == dsn
        assert postmaster(made) == pid
        assert ask(use.dsn, "select 1") == 1
    assert not runs(made)


def test_after_a_killed_postmaster_all_commits_are_there(made: Path) -> None:
    with Embedded.use(made) as use:
        do(use.dsn, "create table kept as select 42 as answer")
        busy = psycopg.connect(use.dsn, autocommit=True)

        def never_ends() -> None:
            # It does not notice that its postmaster was killed, and blocks the next one.
            with suppress(psycopg.OperationalError):
                busy.execute("do $$ begin loop end loop; end $$")

        thread = threading.Thread(target=never_ends)
        thread.start()
        active = "select count(*) from pg_stat_activity where query ~ '^do ' and state = 'active'"
        wait_for(lambda: ask(use.admin_dsn, active), "the endless statement")
        os.kill(postmaster(made), signal.SIGKILL)
        with Embedded.use(made) as again:
            assert ask(again.dsn, "select answer from kept") == 42
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()
        busy.close()
    assert not runs(made)


def test_a_server_whose_backend_just_crashed_can_be_stopped(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STOP_SECONDS", 1)
    for _ in range(5):
        with Embedded.use(made, settings=QUICK) as use:
            with psycopg.connect(use.dsn, autocommit=True) as conn:
                os.kill(conn.info.backend_pid, signal.SIGKILL)
            wait_for(lambda: "reinitializing" in log_of(made), "the recovery")
        assert not runs(made)


def test_a_reused_process_id_is_not_mistaken_for_the_server(made: Path) -> None:
    Embedded.use(made, settings=QUICK).leave()
    data = made / "postgres"
    user = data.stat().st_uid if ROOT else None
    stranger = subprocess.Popen(["sleep", "60"], user=user)
    try:
        for note in (data / "postmaster.pid", made / "socket" / ".s.PGSQL.5432.lock"):
            note.write_text(f"{stranger.pid}\n{data}\n0\n5432\n\n\n")
        with Embedded.use(made, settings=QUICK) as use:
            assert ask(use.dsn, "select 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize(
    "stage",
    [
        "postgres.new-*/PG_VERSION",
        "postgres.new-*/base/5/PG_VERSION",  # The last database of initdb.
        "postgres.new-*/base/1[0-9]*",  # Our own database.
        "postgres/PG_VERSION",
    ],
)
def test_an_unfinished_cluster_is_never_used(home: Path, stage: str) -> None:
    maker = Process(home)
    wait_for(lambda: any(home.glob(stage)) or (home / "postgres").exists(), stage)
    maker.kill()
    with Embedded.use(home, settings=QUICK) as use:
        assert ask(use.dsn, "select current_user") == "penstock"
    Embedded.use(home, settings=QUICK).leave()
    assert not list(home.glob("postgres.new-*"))
