"""A database that another 0001 made: refused by every command, with a way out that works.

Until the first release 0001 is edited in place, so this happens to whoever tries an early version.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from upgrade import packages
from upgrade.packages import Package

MIGRATION = "0001_tables"


@pytest.fixture
def now(tmp_path: Path) -> Package:
    return packages.this(tmp_path)


@pytest.fixture(params=["another edition", "a longer chain"])
def before(request: pytest.FixtureRequest, now: Package, tmp_path: Path) -> Package:
    """A version whose 0001 says something else; or has fewer tables, and a second migration."""
    package = packages.following(now, tmp_path)
    migrations = package.code / "sql" / "migrations"
    first = next(migrations.glob(f"{MIGRATION}/up*job.sql"))
    first.write_text(first.read_text() + "\nalter table penstock.job add former text;\n")
    if request.param == "another edition":
        [second] = migrations.glob("0002_*")
        for file in second.iterdir():
            file.unlink()
        second.rmdir()
    return package


@pytest.fixture
def dsn(blank: str, before: Package) -> str:
    """The address of such a database, with two live jobs."""
    before.run(blank, "migrate", "up")
    with psycopg.connect(blank) as conn:
        conn.execute("""select penstock.declare_queue('q', '{"concurrency": 2}')""")
        conn.execute("select penstock.declare_kind('mark', 'q', '{}')")
        for n in (1, 2):
            conn.execute(
                "select penstock.submit_job('mark', %s, topic => 't', delay_seconds => %s)",
                [Jsonb({"n": n}), n * 1000],
            )
    return blank


def jobs(dsn: str) -> list[Any]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(
            "select j.id, j.status::text, j.topic, j.payload, j.created_at, q.name, q.concurrency"
            " from penstock.job j join penstock.queue q on q.id = j.queue_id order by j.id"
        ).fetchall()


def refusal(package: Package, dsn: str, *words: str) -> str:
    """What a command says that has to fail."""
    with package.start(dsn, *words) as process:
        output, _ = process.communicate(timeout=packages.RUN_SECONDS)
    assert process.returncode == 1, output
    return output


def test_it_is_refused_and_the_named_commands_transfer_the_jobs(
    before: Package, now: Package, dsn: str, tmp_path: Path
) -> None:
    file, kept = str(tmp_path / "live.jsonl"), jobs(dsn)
    for words in (["migrate", "up"], ["migrate", "down", "--to", "0"], ["queues"], ["doctor"]):
        output = refusal(now, dsn, *words)
        assert "another edition of migration 0001" in output, words
    assert jobs(dsn) == kept
    status = now.run(dsn, "migrate", "status")
    commands = re.findall("`penstock (.*?)`", status)
    assert commands == ["migrate down --to 0 --export FILE", "migrate up", "import FILE"]
    for package, words in zip((before, now, now), commands, strict=True):
        package.run(dsn, *shlex.split(words.replace("FILE", file)))
    assert jobs(dsn) == kept
    assert json.loads(now.run(dsn, "migrate", "status", "--json"))["is_current"]
    now.run(dsn, "check")
