"""`account`: plans, balances and every change of credits, from the shell."""

import csv
import io
import json
from typing import Any

import psycopg
import pytest

from penstock.cli.commands import accounts
from support.shapes import Penstock

MOST = 10**12


@pytest.fixture
def plans(db: psycopg.Connection) -> psycopg.Connection:
    """Plans `free` (the default one) and `pro`."""
    for name, options in {
        "free": {"per_hour": 2, "concurrency": 1, "default": True},
        "pro": {"priority": 10},
    }.items():
        db.execute("select penstock.declare_plan(%s, %s)", [name, json.dumps(options)])
    return db


def read_json(penstock: Penstock, *words: str) -> Any:
    done = penstock(*words, "--json")
    assert (done.code, done.err) == (0, ""), done
    return json.loads(done.out)


def facts(penstock: Penstock, name: str) -> dict[str, str]:
    lines = penstock("account", "show", name).out.splitlines()
    return {line[:12].strip(): line[12:] for line in lines}


@pytest.mark.usefixtures("plans")
def test_an_account_is_created_with_a_plan_and_changes_it(penstock: Penstock) -> None:
    """G8"""
    done = penstock("account", "create", "u1")
    assert done.out == "Account u1 exists, with plan free and 0 credits.\n"
    assert read_json(penstock, "account", "create", "u2", "--plan", "pro")["plan"] == "pro"
    assert penstock("account", "plan", "u1", "pro").out == "Account u1 now has plan pro.\n"
    assert read_json(penstock, "account", "plan", "u1", "free")["plan"] == "free"
    again = penstock("account", "create", "u1")
    assert (again.code, again.out) == (1, "")
    assert again.err == "penstock: account u1 exists already\n"


@pytest.mark.usefixtures("db")
def test_without_plans_an_account_has_none(penstock: Penstock) -> None:
    done = penstock("account", "create", "u1")
    assert done.out == "Account u1 exists, with no plan and 0 credits.\n"
    assert facts(penstock, "u1")["plan"] == "-"


@pytest.mark.usefixtures("db")
def test_credits_are_granted_deducted_and_refunded_once_per_ref(penstock: Penstock) -> None:
    """G19"""
    done = penstock("account", "grant", "u1", "50", "--reason", "bought", "--ref", "pay-1")
    assert (done.code, done.out) == (0, "Granted 50 credits to u1; the balance is 50.\n")
    again = penstock("account", "grant", "u1", "50", "--ref", "pay-1")
    assert (again.code, again.out) == (
        0,
        "This was done before under ref pay-1: nothing changed; the balance is 50.\n",
    )
    assert penstock("account", "deduct", "u1", "8", "--ref", "video-1").out.endswith("is 42.\n")
    assert (
        read_json(penstock, "account", "deduct", "u1", "8", "--ref", "video-1")["replayed"] is True
    )
    done = penstock("account", "refund", "u1", "--ref", "video-1")
    assert done.out == "Refunded 8 credits to u1; the balance is 50.\n"
    answer = read_json(penstock, "account", "refund", "u1", "--ref", "video-1")
    assert (answer["balance"], answer["replayed"], answer["amount"]) == (50, True, 8)
    assert penstock("account", "grant", "u1", "1").out.endswith(
        "1 credit to u1; the balance is 51.\n"
    )


@pytest.mark.usefixtures("db")
def test_no_more_is_deducted_than_the_balance(penstock: Penstock) -> None:
    """G1, G2"""
    penstock("account", "grant", "u1", "5")
    done = penstock("account", "deduct", "u1", "6", "--ref", "r")
    assert (done.code, done.out) == (1, "")
    sentence, hint = done.err.splitlines()
    assert sentence == "penstock: account u1 has 5 credits, and this needs 6"
    assert hint == "`penstock account grant u1 AMOUNT` adds credits."
    assert read_json(penstock, "account", "show", "u1")["balance"] == 5


@pytest.mark.parametrize("amount", ["0", "-5", "1.5", "1e3", "", "much", str(MOST + 1), "9" * 400])
@pytest.mark.parametrize("verb", ["grant", "deduct"])
def test_a_wrong_amount_is_wrong_use(penstock: Penstock, verb: str, amount: str) -> None:
    """It is refused before the database is needed."""
    done = penstock("account", verb, "u1", amount, "--ref", "r")
    assert (done.code, done.out) == (2, "")
    message = " ".join(done.err.replace("│", " ").split())
    assert "AMOUNT" in message
    assert "must be a whole number from 1 to 1,000,000,000,000" in message


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["show", "nope"], 1, "there is no account nope"),
        (["ledger", "nope"], 1, "there is no account nope"),
        (["ledger", "nope", "--all", "--format", "csv"], 1, "there is no account nope"),
        (["ledger", "nope", "--all", "--json"], 1, "there is no account nope"),
        (["plan", "nope", "pro"], 1, "there is no account nope"),
        (["plan", "u1", "gold"], 1, "there is no plan gold"),
        (["create", "new", "--plan", "gold"], 1, "there is no plan gold"),
        (["create", ""], 2, "1 to 200 characters"),
        (["create", "n" * 201], 2, "1 to 200 characters"),
        (["grant", "", "5"], 2, "1 to 200 characters"),
        (["grant", "u1", "5", "--ref", "r" * 201], 2, "ref must be"),
        (["grant", "u1", "5", "--ref", ""], 2, "ref must be"),
        (["grant", "u1", "5", "--reason", "r" * 501], 2, "reason must be"),
        (["grant", "u1", "5", "--reeson", "x"], 2, "--reeson"),
        (["deduct", "nope", "5", "--ref", "r"], 1, "there is no account nope"),
        (["deduct", "u1", "5"], 2, "--ref"),
        (["refund", "u1"], 2, "--ref"),
        (["refund", "u1", "--ref", "r"], 1, "nothing was deducted from account u1"),
        (["grant", "u1", "7", "--ref", "once"], 1, "reference once was used for another amount"),
        (["ledger", "u1", "--limit", "0"], 2, "--limit"),
        (["ledger", "u1", "--format", "xml"], 2, "--format"),
        (["list", "--limit", "1001"], 2, "--limit"),
        (["grant", "u1"], 2, "AMOUNT"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
@pytest.mark.usefixtures("plans")
def test_mistakes_are_sentences(penstock: Penstock, words: list[str], code: int, says: str) -> None:
    penstock("account", "grant", "u1", "5", "--ref", "once")
    done = penstock("account", *words)
    assert (done.code, done.out) == (code, "")
    assert says in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err


def test_an_account_is_shown_with_what_it_uses_of_its_plan(
    penstock: Penstock, plans: psycopg.Connection
) -> None:
    """G7"""
    penstock("account", "grant", "u1", "1200")
    assert facts(penstock, "u1")["next submit"] == "now"
    for _ in range(2):
        plans.execute("select penstock.submit_job('model', '{}', account => 'u1')")
    row = plans.execute("select penstock.register_worker('w')").fetchone()
    assert row
    plans.execute("select penstock.claim_jobs(%s, 'model', 1)", [row[0]])
    shown = facts(penstock, "u1")
    assert shown["plan"] == "free"
    assert shown["balance"] == "1,200 credits"
    assert (shown["running"], shown["queued"]) == ("1 of 1", "1")
    assert shown["last hour"] == "2 of 2 submits"
    account = read_json(penstock, "account", "show", "u1")
    assert shown["next submit"] == f"in 60 min, at {account['next_submit_at']}"
    assert shown["created"].endswith(" ago)")
    penstock("account", "plan", "u1", "pro")
    shown = facts(penstock, "u1")
    assert (shown["running"], shown["next submit"]) == ("1", "now")


@pytest.mark.usefixtures("plans")
def test_accounts_are_listed_by_name_in_pages(penstock: Penstock) -> None:
    assert penstock("account", "list").out.startswith("No accounts yet")
    assert read_json(penstock, "account", "list") == []
    for name in ("b", "a", "c"):
        penstock("account", "grant", name, "1000")
    head, *rows = penstock("account", "list").out.splitlines()
    assert head.split()[:3] == ["ACCOUNT", "PLAN", "BALANCE"]
    assert [row.split()[:3] for row in rows] == [[name, "free", "1,000"] for name in "abc"]
    page = read_json(penstock, "account", "list", "--limit", "2")
    rest = read_json(penstock, "account", "list", "--after", page[-1]["id"])
    assert [account["id"] for account in page + rest] == ["a", "b", "c"]
    assert penstock("account", "list", "--after", "c").out == "No more.\n"


def moved(penstock: Penstock, many: int = 7) -> None:
    """Write a ledger with this many lines, the last of them a deduction."""
    for n in range(many - 1):
        penstock("account", "grant", "u1", str(n + 1), "--ref", f"r{n}")
    penstock("account", "deduct", "u1", "3", "--ref", "d", "--reason", 'a "book", twice\nread')


@pytest.mark.usefixtures("db")
def test_a_ledger_is_shown_newest_first(penstock: Penstock) -> None:
    penstock("account", "create", "u1")
    assert penstock("account", "ledger", "u1").out == "The ledger has no lines yet.\n"
    assert read_json(penstock, "account", "ledger", "u1") == []
    moved(penstock)
    head, newest, before, *_ = penstock("account", "ledger", "u1").out.splitlines()
    assert head.split() == ["AT", "KIND", "AMOUNT", "BALANCE", "JOB", "REF", "REASON"]
    assert newest.split()[1:] == ["deduct", "-3", "18", "-", "d", "a", '"book",', "twice", "read"]
    assert before.split()[1:4] == ["grant", "+6", "21"]
    lines = read_json(penstock, "account", "ledger", "u1", "--limit", "2")
    assert [line["amount"] for line in lines] == [-3, 6]
    assert lines == read_json(
        penstock, "account", "ledger", "u1", "--limit", "2", "--format", "json"
    )


@pytest.mark.usefixtures("db")
def test_a_ledger_is_exported_as_csv_oldest_first(penstock: Penstock) -> None:
    """The columns are stable: other programs read them."""
    penstock("account", "create", "u1")
    head = "at,kind,amount,job,ref,reason,balance_after\n"
    assert penstock("account", "ledger", "u1", "--format", "csv").out == head
    assert penstock("account", "ledger", "u1", "--format", "csv", "--all").out == head
    moved(penstock)
    for words, first in ([], "1"), (["--all"], "1"), (["--limit", "3"], "5"):
        done = penstock("account", "ledger", "u1", "--format", "csv", *words)
        assert done.out.startswith(head)
        rows = list(csv.DictReader(io.StringIO(done.out)))
        assert rows[0]["amount"] == first
        assert rows[-1]["reason"] == 'a "book", twice\nread'
        assert (rows[-1]["amount"], rows[-1]["balance_after"]) == ("-3", "18")
    balance = 0
    for row in csv.DictReader(
        io.StringIO(penstock("account", "ledger", "u1", "--format", "csv", "--all").out)
    ):
        balance += int(row["amount"])
        assert int(row["balance_after"]) == balance


@pytest.mark.parametrize("lines", [5, 6, 7])
def test_a_whole_ledger_is_read_in_pages(
    penstock: Penstock, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    """However long it is, only one page of it is in memory."""
    monkeypatch.setattr(accounts, "PAGE", 3)
    moved(penstock, lines)
    ids = [row[0] for row in db.execute("select id from penstock.ledger order by id").fetchall()]
    assert len(ids) == lines
    found = read_json(penstock, "account", "ledger", "u1", "--all")
    assert [line["id"] for line in found] == ids
    exported = penstock("account", "ledger", "u1", "--all", "--format", "csv").out
    assert len(list(csv.reader(io.StringIO(exported)))) == lines + 1
    head, first, *rest = penstock("account", "ledger", "u1", "--all").out.splitlines()
    assert (head.split()[0], first.split()[2]) == ("AT", "+1")
    assert len(rest) == lines - 1


@pytest.mark.usefixtures("db")
def test_a_ledger_on_a_terminal_cannot_move_the_cursor(
    penstock: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    penstock("account", "grant", "u1", "5", "--reason", "a\x1b[2Jb")
    assert "\x1b[2J" not in penstock("account", "ledger", "u1").out
    assert "\x1b[2J" not in penstock("account", "ledger", "u1", "--json").out
    assert "a\x1b[2Jb" in penstock("account", "ledger", "u1", "--format", "csv").out, "as it is"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "\x1b[2J" not in penstock("account", "ledger", "u1", "--format", "csv").out
