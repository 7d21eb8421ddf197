"""`penstock metrics`: finished jobs by the hour, for people and for programs."""

import json

import psycopg

from support.shapes import Penstock


def test_finished_jobs_are_shown_by_the_hour(penstock: Penstock, db: psycopg.Connection) -> None:
    """S10"""
    assert penstock("metrics").out == "No job has finished in that time.\n"
    db.execute("select penstock.submit_job('model', '{}')")
    worker = db.execute("select penstock.register_worker('w')").fetchone()
    assert worker
    db.execute(
        "select penstock.finish_jobs(%s, array_agg(c.id), array_agg(c.attempt), array['failed'],"
        ' p_errors => array[\'{"class": "timeout", "message": "m"}\'::jsonb])'
        " from penstock.claim_jobs(%s, 'model', 1) c",
        [worker[0], worker[0]],
    )
    shown = penstock("metrics", "--hours", "2")
    assert shown.code == 0
    words = [line.split() for line in shown.out.splitlines()]
    assert ["model", "model", "failed", "1"] in [line[2:6] for line in words]
    assert ["timeout", "1"] in [line[2:4] for line in words]
    found = json.loads(penstock("metrics", "--json").out)
    assert [each["class"] for each in found["timeouts"]] == ["timeout"]
    assert penstock("metrics", "--hours", "0").code == 2
