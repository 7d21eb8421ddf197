"""`queues`, `pause`, `resume`, `queues reset`."""

import json

import psycopg
import pytest

from support.shapes import Penstock


def test_queues_are_shown_with_limits_and_counts_of_jobs(
    penstock: Penstock, db: psycopg.Connection
) -> None:
    db.execute("select penstock.submit_job('model', '{}')")
    db.execute("""select penstock.edit_queue('model', '{"concurrency": 3, "rate": "5/s"}')""")
    done = penstock("queues")
    assert (done.code, done.err) == (0, "")
    head, model, other = [line.split() for line in done.out.splitlines()]
    shown = dict(zip(head, [*model[:1], " ".join(model[1:3]), *model[3:]], strict=False))
    assert " model no worker 1 " in f" {' '.join(model)} ", "ready, nobody would start it"
    assert (shown["LIMIT"], shown["RATE"]) == ("3", "5/s")
    assert model[-2:] == ["rate,", "concurrency"]
    assert other[0] == "other"
    answer = json.loads(penstock("queues", "--json").out)
    assert [queue["name"] for queue in answer] == ["model", "other"]
    assert answer[0]["overrides"] == {"concurrency": 3, "rate": "5/s"}


def test_without_queues_it_says_where_they_come_from(
    penstock: Penstock, migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DSN", migrated)
    assert penstock("queues").out.startswith("No queues yet")
    assert penstock("queues", "--json").out == "[]\n"


def test_a_queue_is_paused_and_resumed(penstock: Penstock, db: psycopg.Connection) -> None:
    db.execute("select penstock.submit_job('model', '{}')")
    done = penstock("pause", "model", "--reason", "the bill")
    assert done.code == 0
    assert done.out.startswith("Queue model is paused: 1 queued, 0 still running.")
    assert "paused: the bill" in penstock("queues").out
    answer = json.loads(penstock("pause", "model", "--json").out)
    assert (answer["paused"], answer["paused_reason"]) == (True, None)
    assert penstock("resume", "model").out == "Queue model is resumed: 1 job queued.\n"
    assert penstock("resume", "model").out == "Queue model was not paused.\n"
    assert json.loads(penstock("resume", "model", "--json").out)["paused"] is False


def test_a_reset_removes_the_overrides(penstock: Penstock, db: psycopg.Connection) -> None:
    free = "The next app that starts may declare it and its kinds again"
    assert penstock("queues", "reset", "model").out == (
        f"Queue model had no overrides: its limits are as declared.\n{free}.\n"
    )
    db.execute("select penstock.declare_queue('model', '{\"attempts\": 4}', 'shop')")
    db.execute("""select penstock.edit_queue('model', '{"concurrency": 3}')""")
    done = penstock("queues", "reset", "model")
    assert done.out == (
        f"Queue model is as declared again; removed concurrency.\n{free} (so far shop did).\n"
    )
    answer = json.loads(penstock("queues", "reset", "model", "--json").out)
    assert (answer["overrides"], answer["concurrency"]) == ({}, None)


@pytest.mark.parametrize(
    "words", [["pause", "nope"], ["resume", "nope"], ["queues", "reset", "nope"]], ids=" ".join
)
@pytest.mark.usefixtures("db")
def test_an_unknown_queue_is_a_sentence(penstock: Penstock, words: list[str]) -> None:
    done = penstock(*words)
    assert (done.code, done.out) == (1, "")
    assert done.err == "penstock: there is no queue nope; known are model, other.\n"
    near = penstock(*words[:-1], "modl")
    assert near.err == (
        "penstock: there is no queue modl; known are model, other. Did you mean model?\n"
    )


def test_a_provider_that_refuses_many_calls_is_shown_with_the_allowed_jobs(
    penstock: Penstock, db: psycopg.Connection
) -> None:
    """D4"""
    db.execute("""select penstock.edit_queue('model', '{"concurrency": 8}')""")
    db.execute(
        "update penstock.circuit set state = 'ramping', allowed = 3, refused = 0.47"
        " where queue_id = (select id from penstock.queue where name = 'model')"
    )
    done = penstock("queues")
    assert "refuses calls: 47%" in done.out
    message = (
        "! the provider of queue model answers, and refuses about half of its calls; at most 3 of 8"
        " run at once, more with each answer"
    )
    assert message in done.out
    assert "refuses about half of its calls" in " ".join(penstock("status").out.split())
    shown = json.loads(penstock("queues", "--json").out)[0]["circuit"]
    assert (shown["allowed"], shown["refused"]) == (3, 0.47)
