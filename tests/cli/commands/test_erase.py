"""`penstock erase`: it asks first, reports what it removed, and names jobs that still run."""

import io
import json

import psycopg
import pytest

from support.shapes import Penstock


@pytest.fixture
def account(db: psycopg.Connection) -> str:
    db.execute("select penstock.grant_credits('u1', 5, 'bought')")
    db.execute("select penstock.submit_job('model', '{\"n\": 1}', account => 'u1')")
    return "u1"


def names(db: psycopg.Connection) -> list[str]:
    return [row[0] for row in db.execute("select name from penstock.account where id <> 0")]


def test_it_reports_what_it_removed(
    penstock: Penstock, account: str, db: psycopg.Connection
) -> None:
    done = penstock("erase", account, "--yes")
    assert done.code == 0, done.err
    assert "Account u1 is erased: 1 job, 0 uploads, 0 webhook messages, 0 keys revoked." in done.out
    assert "it is now erased-1: 1 line, 1 of them with the reference or reason" in done.out
    assert names(db) == [None]


def test_json_is_the_receipt(penstock: Penstock, account: str) -> None:
    done = penstock("erase", account, "--yes", "--json")
    receipt = json.loads(done.out)
    assert (receipt["jobs"], receipt["pseudonym"]) == (1, "erased-1")


def test_without_confirmation_nothing_happens(
    penstock: Penstock, account: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    done = penstock("erase", account)
    assert done.code == 1
    assert "Remove everything of account u1, and cancel 1 live job?" in done.err
    assert names(db) == ["u1"]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert penstock("erase", account).code == 0
    assert names(db) == [None]


def test_an_unknown_account_is_refused(penstock: Penstock, account: str) -> None:
    done = penstock("erase", "nobody", "--yes")
    assert (done.code, done.err.splitlines()) == (1, ["penstock: there is no account nobody"])
    assert penstock("erase", account, "--yes").code == 0


def test_jobs_that_do_not_stop_are_counted(
    penstock: Penstock, account: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.commands.accounts.WAIT_SECONDS", 0)
    db.execute("select penstock.claim_jobs(penstock.register_worker('w'), 'model', 1)")
    done = penstock("erase", account, "--yes")
    assert done.code == 1
    assert "1 of the account's jobs still run; they were asked to stop" in done.err
    assert names(db) == ["u1"]
