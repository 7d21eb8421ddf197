"""Versions of the package in folders of their own: the last release, this one, and a next one."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import penstock
from penstock.db.schema.files import Schema, read
from support.http.site import SECRET

HERE = Path(__file__).parent
LAST = HERE / "last.tar.xz"
# The upgrades that tests go through. The last release takes part from the day it is kept here.
STEPS = ("this to next", *(["last to this"] if LAST.exists() else []))
RUN_SECONDS = 60.0


@dataclass(frozen=True)
class Package:
    """A version of Penstock: the folder that PYTHONPATH names."""

    name: str
    folder: Path

    @property
    def code(self) -> Path:
        return self.folder / "penstock"

    @property
    def schema(self) -> Schema:
        return read(self.code / "sql")

    def environment(self, dsn: str) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if "PENSTOCK_" not in name}
        path = os.pathsep.join([str(self.folder), str(HERE)])
        return {**ours, "PYTHONPATH": path, "PENSTOCK_DSN": dsn, "PENSTOCK_SECRET": SECRET}

    def start(self, dsn: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "penstock", *words],
            env=self.environment(dsn),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, dsn: str, *words: str) -> str:
        """A command that has to succeed; what it printed."""
        with self.start(dsn, *words) as process:
            out, _ = process.communicate(timeout=RUN_SECONDS)
        assert process.returncode == 0, out
        return out


def step(name: str, folder: Path) -> tuple[Package, Package]:
    """The old version and the new one of an upgrade that STEPS names."""
    now = this(folder)
    if name == "last to this":
        return unpacked("last", LAST, folder), now
    return now, following(now, folder)


def this(folder: Path) -> Package:
    """A copy: files that somebody edits meanwhile would be another version.

    It is packed and unpacked as `make last` keeps a release, so that this works on the day of one.
    """
    packed = folder / "this.tar.xz"
    with tarfile.open(packed, "w:xz", preset=0) as file:
        file.add(Path(penstock.__file__).parent, "src/penstock", filter=_without_bytecode)
    return unpacked("this", packed, folder)


def unpacked(name: str, packed: Path, folder: Path) -> Package:
    with tarfile.open(packed) as file:
        file.extractall(folder / name, filter="data")
    return Package(name, folder / name / "src")


def _without_bytecode(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if info.name.endswith("__pycache__") else info


def following(old: Package, folder: Path) -> Package:
    """A version after it, with what a release may change: tables, an index, functions."""
    shutil.copytree(old.code, folder / "next" / "penstock")
    package = Package("next", folder / "next")
    sql = package.code / "sql"
    migration = sql / "migrations" / f"{package.schema.wanted + 1:04}_next"
    migration.mkdir()
    (migration / "up.sql").write_text(
        "alter table penstock.job add hue text not null default 'blue';\n"
        "alter table penstock.finished add hue text;\n"
        "create index job_by_hue on penstock.job (hue, id) where status = 'running';\n"
        "alter table penstock.account add last_seen_at timestamptz;\n"
    )
    (migration / "down.sql").write_text(
        "alter table penstock.account drop last_seen_at;\n"
        "alter table penstock.finished drop hue;\n"
        "alter table penstock.job drop hue;\n"
    )
    for function in ("claim_jobs", "finish_jobs", "accept_job"):
        _add_argument(sql / "functions", function)
    _change_body(sql / "functions", "beat_worker")
    return package


def _add_argument(folder: Path, function: str) -> None:
    """One more, with a default: those who do not know of it call as before."""
    pattern = re.compile(
        rf"(create or replace function penstock\.{function}\(.*?)(\s*\) returns)", re.DOTALL
    )
    _edit(folder, pattern, r"\1, p_hue text default null\2")


def _change_body(folder: Path, function: str) -> None:
    pattern = re.compile(
        rf"(create or replace function penstock\.{function}\(.*?\$\$\n)", re.DOTALL
    )
    _edit(folder, pattern, r"\1-- Changed.\n")


def _edit(folder: Path, pattern: re.Pattern[str], to: str) -> None:
    edited = 0
    for file in folder.rglob("*.sql"):
        text, n = pattern.subn(to, file.read_text(), count=1)
        if n:
            file.write_text(text)
            edited += 1
    assert edited == 1, pattern.pattern
