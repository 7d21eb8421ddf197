"""The messages for failures of the embedded Postgres; its settings and its log."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from penstock.db.embedded import files
from penstock.db.embedded.database import Embedded
from penstock.db.embedded.server_user import ServerUser
from penstock.errors import EmbeddedFailed
from support.db.embedded_uses import (
    QUICK,
    ROOT,
    ask,
    do,
    end_servers,
    failure,
    log_of,
    needs_root,
    nobody_using,
    quiet_forks,
    runs,
    wait_for,
)

pytestmark = quiet_forks


@contextmanager
def small_disk(at: Path, options: str) -> Iterator[None]:
    at.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount")
    try:
        yield
    finally:
        end_servers(at)
        subprocess.run(["umount", str(at)], check=True)


# --- The messages for failures --------------------------------------------------------------


def test_home_is_a_file(home: Path) -> None:
    home.touch()
    assert f"{home} is a file, but a folder is needed" in failure(home)
    assert "is a file, but a folder is needed" in failure(home / "below")


@needs_root
def test_a_read_only_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "ro"):
        message = failure(tmp_path / "disk" / "home")
    assert "read-only file system: set PENSTOCK_HOME" in message


def test_a_folder_that_may_not_be_written(open_folder: Path) -> None:
    home = open_folder / "home"
    if ROOT:
        with nobody_using(home) as (_, message):
            pass
        assert "nobody may not write" in message
    else:
        open_folder.chmod(0o555)
        message = failure(home)
        open_folder.chmod(0o755)
    assert f"may not write {home}" in message
    assert "set PENSTOCK_HOME" in message


def test_data_of_another_version(made: Path) -> None:
    Embedded.use(made, settings=QUICK).leave()
    (made / "postgres" / "PG_VERSION").write_text("14\n")
    message = failure(made)
    assert "was written by Postgres 14" in message
    assert "are Postgres 18" in message
    assert "pg_dump" in message


def test_a_data_folder_with_other_content(home: Path) -> None:
    (home / "postgres").mkdir(parents=True)
    (home / "postgres" / "letter.txt").touch()
    assert "holds no Postgres data: move it" in failure(home)
    assert not list(home.glob("postgres.new-*"))


def test_too_little_space_is_noticed_before_the_cluster_is_created(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(home.parent)._replace(free=50 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    message = failure(home)
    assert "50 MB are free and 200 MB are needed" in message


@needs_root
def test_a_disk_that_fills_up_while_the_cluster_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "FREE_BYTES", 0)
    with small_disk(tmp_path / "disk", "size=30m"):
        message = failure(tmp_path / "disk" / "home")
        assert not list((tmp_path / "disk" / "home").glob("postgres*"))
    assert "The disk is full: free space" in message


@needs_root
def test_a_disk_that_is_full_when_the_server_starts(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "size=250m"):
        home = disk / "home"
        Embedded.use(home, settings=QUICK).leave()
        with (disk / "fill").open("wb") as fill, suppress(OSError):
            while True:
                fill.write(b"0" * 2**20)
        message = failure(home)
        assert "free space" in message
        (disk / "fill").unlink()
        Embedded.use(home, settings=QUICK).leave()


def test_no_binaries_for_this_platform(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "find_spec", lambda _: None)
    message = failure(home)
    assert "no Postgres binaries for this platform" in message
    assert "set PENSTOCK_DSN" in message


def test_binaries_of_another_architecture(home: Path, open_folder: Path) -> None:
    (open_folder / "postgres").write_bytes(b"\x7fELF of a machine nobody has built")
    (open_folder / "postgres").chmod(0o755)
    message = failure(home, bin_dir=open_folder)
    assert "do not run on this machine" in message
    assert "Exec format error" in message
    assert "set PENSTOCK_DSN" in message.replace("Set", "set")
    assert "No such file" in failure(home, bin_dir=open_folder / "missing")


def test_the_error_of_a_server_that_does_not_start_quotes_its_log(made: Path) -> None:
    with pytest.raises(EmbeddedFailed, match="does not start") as caught:
        Embedded.use(made, settings={"max_connections": "many"})
    assert 'invalid value for parameter "max_connections"' in str(caught.value)
    Embedded.use(made, settings=QUICK).leave()
    control = made / "postgres" / "global" / "pg_control"
    control.write_bytes(b"\0" * control.stat().st_size)
    message = failure(made)
    assert "FATAL" in message  # Written after the log was opened, so it is in another file.


def test_a_removed_socket_of_a_running_server(made: Path) -> None:
    with Embedded.use(made, settings=QUICK):
        (made / "socket" / ".s.PGSQL.5432").unlink()
        with pytest.raises(EmbeddedFailed, match=r"its socket in .* is missing"):
            Embedded.use(made)
    assert not runs(made)


def test_a_user_id_to_which_root_may_not_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(subprocess, "run", refuse)
    nobody = ServerUser(65534, 65534, lent=True)
    with pytest.raises(EmbeddedFailed, match="does not let root switch to"):
        nobody.run(["true"])


# --- The settings and the log ---------------------------------------------------------------


def test_settings_override_ours_and_are_quoted(made: Path) -> None:
    with Embedded.use(made, settings={**QUICK, "cluster_name": r"it's a \ name"}) as use:
        assert ask(use.dsn, "show fsync") == "off"
        assert ask(use.dsn, "show cluster_name") == r"it's a \ name"


def test_no_part_of_a_payload_reaches_the_log(made: Path) -> None:
    marker = "s3cr3t-of-somebody"
    statements = [
        f"select '{marker}'::int",
        f"""select '{{"a": {marker}}}'::json""",
        f"select '{marker}' from nowhere",
        f"insert into pairs values ('{marker}'), ('{marker}')",
        f"do $$ begin raise exception '{marker}' using detail = '{marker}'; end $$",
        f"do $$ begin raise warning '{marker}'; perform 1/0; end $$",
    ]
    with Embedded.use(made, settings=QUICK) as use:
        do(use.dsn, "create table pairs (key text primary key)")
        with psycopg.connect(use.dsn, autocommit=True) as conn:
            for statement in statements:
                with pytest.raises(psycopg.Error):
                    conn.execute(statement.encode())
            with pytest.raises(psycopg.Error):
                conn.execute("select %s::int", [marker])
            # The postmaster reports the statement of a backend that crashes.
            conn.execute(f"select '{marker}'".encode())
            os.kill(conn.info.backend_pid, signal.SIGKILL)
        wait_for(lambda: "was terminated by signal 9" in log_of(made), "the crash to be logged")
        Embedded.use(made).leave()
    assert marker not in log_of(made)


def test_logs_do_not_pile_up(made: Path) -> None:
    Embedded.use(made, settings=QUICK).leave()
    old = made / "log" / "postgres-Old.log"
    old.touch()
    os.utime(old, (0, 0))
    Embedded.use(made, settings=QUICK).leave()
    assert not old.exists()
