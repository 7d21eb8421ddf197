"""Jobs leave a schema that goes, and come back into one that has come."""

import json
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from support.shapes import Penstock


@pytest.fixture
def with_jobs(migrated: str, monkeypatch: pytest.MonkeyPatch, penstock: Penstock) -> str:
    """A database with three live jobs, one of them for later."""
    assert penstock  # asked for because it clears the environment first
    monkeypatch.setenv("PENSTOCK_DSN", migrated)
    with psycopg.connect(migrated) as conn:
        conn.execute("select penstock.declare_queue('q', '{}')")
        conn.execute("select penstock.declare_kind('mark', 'q', '{}')")
        for n in (1, 2):
            payload = Jsonb({"n": n, "text": 'ünï "quoted"\n'})
            conn.execute("select penstock.submit_job('mark', %s)", [payload])
        conn.execute(
            "select penstock.submit_job('mark', %s, delay_seconds => 3600)", [Jsonb({"n": 3})]
        )
    return migrated


def jobs(dsn: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(
            "select id, status::text, payload, created_at, priority from penstock.job order by id"
        ).fetchall()


def test_live_jobs_survive_the_way_down_and_up_again(penstock: Penstock, with_jobs: str) -> None:
    """F10"""
    before = jobs(with_jobs)
    refused = penstock("migrate", "down", "--to", "0")
    assert refused.code == 1
    assert "3 live jobs would be lost" in refused.err
    assert jobs(with_jobs) == before

    down = penstock("migrate", "down", "--to", "0", "--export", "jobs.jsonl")
    assert (down.code, down.err) == (0, "")
    assert "wrote 3 live jobs to jobs.jsonl" in down.out
    assert penstock("import", "jobs.jsonl").code == 1

    assert penstock("migrate", "up").code == 0
    back = penstock("import", "jobs.jsonl", "--json")
    assert (back.code, back.err) == (0, "")
    assert json.loads(back.out) == {"imported": 3, "known": 0}
    assert jobs(with_jobs) == before
    assert json.loads(penstock("import", "jobs.jsonl", "--json").out)["known"] == 3
    assert jobs(with_jobs) == before
    assert penstock("check").code == 0


def test_a_wrong_line_brings_nothing_in(penstock: Penstock, with_jobs: str) -> None:
    before = jobs(with_jobs)
    Path("jobs.jsonl").write_text("{}\nnonsense\n")
    done = penstock("import", "jobs.jsonl")
    assert done.code == 2
    assert jobs(with_jobs) == before
