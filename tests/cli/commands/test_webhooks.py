"""`webhooks`: shown, sent again, and their secrets."""

import json
from uuid import uuid4

import psycopg
import pytest

from penstock.security import signature
from penstock.security.roots import Roots
from support.shapes import Penstock
from support.signing import NEXT_SECRET, SECRET


@pytest.fixture
def delivery(db: psycopg.Connection) -> str:
    """A webhook of a finished job; returns its id."""
    db.execute("select penstock.declare_kind('watched', 'model')")
    db.execute(
        "select penstock.submit_job('watched', '{}', account => 'u1',"
        " webhook_url => 'https://caller.example.com/x', delay_seconds => 60)"
    )
    db.execute("select penstock.cancel_job(id) from penstock.job")
    [found] = db.execute("select id from penstock.delivery").fetchall()
    return str(found[0])


def test_webhooks_are_shown_with_their_state(penstock: Penstock, delivery: str) -> None:
    """E15"""
    done = penstock("webhooks")
    assert (done.code, done.err) == (0, "")
    head, row = done.out.splitlines()
    assert head.split()[:3] == ["ID", "STATUS", "TYPE"]
    assert row.split()[:4] == [
        delivery,
        "pending",
        "job.cancelled",
        "https://caller.example.com/x",
    ]
    [message] = json.loads(penstock("webhooks", "list", "--account", "u1", "--json").out)
    assert (message["id"], message["status"]) == (delivery, "pending")
    assert penstock("webhooks", "list", "--status", "delivered").out == "No webhooks.\n"
    odd = penstock("webhooks", "list", "--status", "odd")
    assert (odd.code, "pending, delivered, given_up" in odd.err) == (2, True)


def test_a_webhook_is_sent_again(penstock: Penstock, delivery: str) -> None:
    done = penstock("webhooks", "replay", delivery)
    assert (done.code, delivery in done.out) == (0, True)
    assert json.loads(penstock("webhooks", "replay", delivery, "--json").out)["id"] == delivery
    missing = penstock("webhooks", "replay", str(uuid4()))
    assert (missing.code, "there is no webhook" in missing.err) == (1, True)


def test_the_secret_of_each_receiver_is_printed(
    penstock: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SECRET", SECRET)
    roots = Roots((SECRET,))
    own = signature.of_webhooks(roots, None, trusted=True).written
    assert penstock("webhooks", "secret").out.split() == own
    account = signature.of_webhooks(roots, "u1", trusted=False).written
    assert json.loads(penstock("webhooks", "secret", "--account", "u1", "--json").out) == account
    functions = signature.of_functions(roots).written
    assert penstock("webhooks", "secret", "--functions").out.split() == functions
    assert len({*own, *account, *functions}) == 3
    assert penstock("webhooks", "secret", "--functions", "--account", "u1").code == 2
    monkeypatch.setenv("PENSTOCK_SECRET", f"{NEXT_SECRET},{SECRET}")
    assert penstock("webhooks", "secret").out.split()[1:] == own
