"""`jobs`, `show`, `retry`, `cancel`: for people and for programs."""

import json
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.cli.commands import jobs
from support.shapes import Penstock

NOBODY = "00000000-0000-7000-8000-000000000000"


def submit(db: psycopg.Connection, kind: str = "model", **fields: Any) -> str:
    named = ", ".join(f"{name} => %s" for name in fields)
    row = db.execute(
        f"select penstock.submit_job(%s, '{{}}'{', ' + named if named else ''}) ->> 'id'",
        [kind, *fields.values()],
    ).fetchone()
    assert row
    return str(row[0])


def finish(db: psycopg.Connection, outcome: str = "succeeded", **values: Any) -> None:
    """Claim the due jobs of queue `model` and finish them with this outcome."""
    row = db.execute("select penstock.register_worker('w1')").fetchone()
    assert row
    [worker] = row
    for job, attempt in db.execute(
        "select id, attempt from penstock.claim_jobs(%s, 'model', 10)", [worker]
    ).fetchall():
        db.execute(
            "select penstock.finish_jobs(%s, array[%s], array[%s], array[%s], array[%s::jsonb],"
            " array[%s::jsonb], array[null::interval])",
            [
                worker,
                job,
                attempt,
                outcome,
                Jsonb(values.get("result")),
                Jsonb(values["error"]) if "error" in values else None,
            ],
        )


FAILED = {"class": "bug", "message": "it \x1b[31mbroke\nhere", "retryable": False}


def test_jobs_are_listed_newest_first(penstock: Penstock, db: psycopg.Connection) -> None:
    """M15, G15"""
    assert penstock("jobs").out == "No jobs.\n"
    first = submit(db, account="u1")
    finish(db, "failed", error=FAILED)
    second = submit(db, topic="t1", delay_seconds=99)
    done = penstock("jobs")
    assert (done.code, done.err) == (0, "")
    head, *rows = [line.split() for line in done.out.splitlines()]
    assert head[:3] == ["ID", "STATUS", "KIND"]
    assert [row[:6] for row in rows] == [
        [second, "scheduled", "model", "model", "-", "t1"],
        [first, "failed", "model", "model", "u1", "-"],
    ]
    assert "bug: it  [31mbroke here" in done.out
    assert "\x1b" not in done.out
    listed = json.loads(penstock("jobs", "--json").out)
    assert [job["id"] for job in listed] == [second, first]
    assert listed[1] == {
        name: json.loads(penstock("show", first, "--json").out)[name] for name in listed[1]
    }


def test_a_pipe_gets_whole_lines(penstock: Penstock, db: psycopg.Connection) -> None:
    long = "no " * 200
    submit(db)
    finish(db, "failed", error={"class": "bug", "message": long, "retryable": False})
    done = penstock("jobs")
    assert long.strip() in done.out
    assert len(done.out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--status", "queued"], 2),
        (["--status", "awaiting"], 0),
        (["--kind", "other"], 1),
        (["--queue", "model"], 2),
        (["--account", "u1"], 1),
        (["--account", "nobody"], 0),
        (["--topic", "t1"], 1),
        (["--limit", "1"], 1),
        (["--queue", "model", "--topic", "t1"], 1),
    ],
)
def test_filters(penstock: Penstock, db: psycopg.Connection, words: list[str], found: int) -> None:
    submit(db, account="u1", delay_seconds=9)
    submit(db, topic="t1")
    submit(db, "other")
    done = penstock("jobs", *words, "--json")
    assert (done.code, len(json.loads(done.out))) == (0, found)
    lines = penstock("jobs", *words).out.splitlines()
    assert len(lines) == (found + 1 if found else 1)


def test_the_next_page_begins_before_the_last_id(
    penstock: Penstock, db: psycopg.Connection
) -> None:
    ids = sorted((submit(db) for _ in range(3)), reverse=True)
    page = json.loads(penstock("jobs", "--limit", "2", "--json").out)
    rest = json.loads(penstock("jobs", "--before", page[-1]["id"], "--json").out)
    assert [job["id"] for job in page + rest] == ids


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["jobs", "--status", "broken"], 2, "succeeded"),
        (["jobs", "--limit", "0"], 2, "--limit"),
        (["jobs", "--limit", "many"], 2, "--limit"),
        (["jobs", "--before", "x"], 2, "Invalid value for --before: 'x' is no job's id"),
        (["jobs", "--queue", "nope"], 1, "there is no queue nope"),
        (["jobs", "--kind", "nope"], 1, "there is no job kind nope"),
        (["show", "42"], 2, "'42' is no job's id"),
        (["retry", "42"], 2, "'42' is no job's id"),
        (["cancel", "42"], 2, "'42' is no job's id"),
        (["show", NOBODY], 1, f"there is no job {NOBODY}"),
        (["retry", NOBODY], 1, f"there is no job {NOBODY}"),
        (["cancel", NOBODY], 1, f"there is no job {NOBODY}"),
        (["show"], 2, "ID"),
    ],
)
@pytest.mark.usefixtures("db")
def test_mistakes_are_sentences(penstock: Penstock, words: list[str], code: int, says: str) -> None:
    done = penstock(*words)
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert "Traceback" not in done.err


def test_a_job_is_shown_with_its_attempts_and_its_result(
    penstock: Penstock, db: psycopg.Connection
) -> None:
    """E7"""
    job = submit(db, account="u1", metadata=Jsonb({"class": "7b"}))
    finish(db, result={"points": 7})
    done = penstock("show", job)
    facts = dict(line.split(maxsplit=1) for line in done.out.split("\n\n")[0].splitlines())
    assert facts["job"] == job
    assert facts["status"] == "succeeded"
    assert facts["account"] == "u1"
    assert facts["result"] == '{"points": 7}'
    assert facts["metadata"] == '{"class": "7b"}'
    assert facts["created"].endswith("ago)")
    head, attempt = done.out.split("\n\n")[1].splitlines()
    assert head.split()[:2] == ["ATTEMPT", "OUTCOME"]
    assert attempt.split()[:2] == ["1", "succeeded"]
    assert attempt.split()[-2] == "w1"
    shown = json.loads(penstock("show", job, "--json").out)
    assert (shown["id"], shown["result"]) == (job, {"points": 7})


def test_a_stage_is_shown_by_its_label_and_progress_in_whole_numbers(
    penstock: Penstock, db: psycopg.Connection
) -> None:
    job = submit(db)
    row = db.execute("select penstock.register_worker('w1')").fetchone()
    assert row
    db.execute("select penstock.claim_jobs(%s, 'model', 1)", [row[0]])
    db.execute(
        "update penstock.job set stage = 'TIER1', progress = '{\"done\": 1.0, \"total\": 2.5}'"
    )
    assert "stage       TIER1\nprogress    1 of 2.5\n" in penstock("show", job).out
    db.execute("update penstock.job set stage_label = 'Tier 1 scanning'")
    assert "stage       Tier 1 scanning\n" in penstock("show", job).out
    for words in (["jobs"], ["top", "--once"]):
        assert "Tier 1 scanning" in penstock(*words).out


def test_a_cancelled_job_says_so_once(penstock: Penstock, db: psycopg.Connection) -> None:
    job = submit(db)
    finish(db, "cancelled", error={"class": "cancelled", "message": "no need", "retryable": False})
    assert "error       no need\n" in penstock("show", job).out
    assert penstock("show", job).out.splitlines()[-1].endswith("no need")
    assert "cancelled: " not in penstock("show", job).out + penstock("jobs").out
    assert jobs.why({"class": "cancelled", "message": "cancelled"}, "cancelled") == "cancelled"
    assert jobs.why({"class": "bug", "message": "it broke"}, "failed") == "bug: it broke"


def test_a_finished_job_is_retried_as_a_new_one(penstock: Penstock, db: psycopg.Connection) -> None:
    job = submit(db)
    finish(db, "failed", error=FAILED)
    done = penstock("retry", job)
    assert done.code == 0
    assert f"which repeats {job}" in done.out
    again = json.loads(penstock("retry", job, "--json").out)
    assert (again["retry_of"], again["deduplicated"]) == (job, True)
    assert again["id"] in done.out
    assert f"Job {again['id']} already does the same" in penstock("retry", job).out
    assert again["id"] in penstock("show", job).out

    later = submit(db, delay_seconds=99)
    assert penstock("retry", later).out == f"Job {later} is due now.\n"
    refused = penstock("retry", later)
    assert refused.code == 1
    assert "only a finished or scheduled one" in refused.err


def test_a_waiting_job_is_cancelled_and_a_finished_one_stays(
    penstock: Penstock, db: psycopg.Connection
) -> None:
    """G13"""
    job = submit(db)
    finish(db)
    assert "succeeded 0 s ago; nothing changed" in penstock("cancel", job).out
    job = submit(db)
    assert penstock("cancel", job).out == f"Job {job} is cancelled.\n"
    assert json.loads(penstock("cancel", job, "--json").out)["status"] == "cancelled"
    job = submit(db)
    row = db.execute("select penstock.register_worker('w')").fetchone()
    assert row
    db.execute("select penstock.claim_jobs(%s, 'model', 1)", [row[0]])
    assert penstock("cancel", job).out == f"Job {job} was asked to stop.\n"
    assert "cancel      requested" in penstock("show", job).out
