"""Position, ETA and staleness in the output of the command line."""

import json

import psycopg
import pytest

from penstock.base.wording import queue_position
from penstock.cli.output import waiting
from support.shapes import Penstock


@pytest.mark.parametrize(
    ("position", "wait", "expected"),
    [
        (None, None, None),
        (3, 40.2, "#3 in queue, about 40 s"),
        (3, None, "#3 in queue"),
        (1, 0.0, "#1 in queue, starts at once"),
        (52_000, 7_900.0, "#52,000 in queue, about 2 h"),
    ],
)
def test_a_position_in_words(
    position: int | None, wait: float | None, expected: str | None
) -> None:
    """F2"""
    assert queue_position(position, wait) == expected


def submit(db: psycopg.Connection) -> str:
    row = db.execute("select penstock.submit_job('model', '{}') ->> 'id'").fetchone()
    assert row
    return str(row[0])


def test_show_has_the_position_and_what_a_job_waits_for(
    penstock: Penstock, db: psycopg.Connection
) -> None:
    """F2"""
    submit(db)
    job = submit(db)
    shown = penstock("show", job).out.splitlines()
    assert "position    #2 in queue" in shown
    assert "waits for   a worker: none is alive that serves its queue" in shown
    answer = json.loads(penstock("show", job, "--json").out)
    assert (answer["position"], answer["eta_seconds"], answer["staleness"]) == (2, None, None)


def test_show_says_that_a_job_is_stale(penstock: Penstock, db: psycopg.Connection) -> None:
    """S7"""
    job = submit(db)
    db.execute(
        "select penstock.claim_jobs(penstock.register_worker('w', interval '1 day'), 'model', 1)"
    )
    assert "stale" not in penstock("show", job).out
    db.execute("update penstock.test_clock set moved = '4 minutes'")
    assert "stale       This takes longer than usual" in penstock("show", job).out
    assert "position" not in penstock("show", job).out


def test_a_waiting_submit_prints_the_position_after_a_while(
    penstock: Penstock, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2"""
    monkeypatch.setattr(waiting, "EXPLAIN_SECONDS", 0.0)
    db.execute("select penstock.register_worker('w1', interval '1 day')")
    db.execute("insert into penstock.pace select id, 40, 1, penstock.clock() from penstock.kind")
    submit(db)
    _, where, _ = penstock("submit", "model", "--wait", "--timeout", "0.3").err.splitlines()
    assert where == "#2 in queue, about 40 s."


def test_the_bar_shows_the_position_then_the_stage() -> None:
    job = {
        "position": 3,
        "status": "queued",
        "stage": None,
        "stage_label": None,
        "progress": None,
    }
    assert waiting._shown(job, 41.0)["description"] == "#3 in queue, about 41 s"
    running = {**job, "position": None, "status": "running", "stage_label": "Reading"}
    assert waiting._shown(running)["description"] == "Reading"
