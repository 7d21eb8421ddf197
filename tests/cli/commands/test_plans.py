"""`plans`: shown, changed at run time, and reset."""

import json

import psycopg
import pytest

from support.shapes import Penstock


@pytest.fixture
def plans(db: psycopg.Connection) -> psycopg.Connection:
    for name, options in {
        "free": {"priority": 50, "concurrency": 1, "per_hour": 10, "default": True},
        "pro": {"priority": 10, "weight": 8, "first_job": -20},
    }.items():
        db.execute("select penstock.declare_plan(%s, %s)", [name, json.dumps(options)])
    db.execute("select penstock.create_account('u1'), penstock.create_account('u2', 'pro')")
    return db


@pytest.mark.usefixtures("plans")
def test_plans_are_shown_with_limits_and_number_of_accounts(penstock: Penstock) -> None:
    """G5, G6, G7"""
    done = penstock("plans")
    assert (done.code, done.err) == (0, "")
    head, pro, free = done.out.splitlines()
    assert head.split("  ")[0] == "PLAN"
    assert pro.split() == ["pro", "10", "-", "-", "8", "-20", "1", "-", "-"]
    assert free.split() == ["free", "50", "1", "10", "1", "-", "1", "yes", "-"]
    answer = json.loads(penstock("plans", "--json").out)
    assert [plan["name"] for plan in answer] == ["pro", "free"]
    assert answer[0]["overrides"] == {}


def test_without_plans_it_says_where_they_come_from(
    penstock: Penstock, migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DSN", migrated)
    assert penstock("plans").out.startswith("No plans yet")
    assert penstock("plans", "--json").out == "[]\n"


def test_a_plan_is_changed_at_once_and_reset(penstock: Penstock, plans: psycopg.Connection) -> None:
    """G8"""
    assert penstock("plans", "reset", "free").out == (
        "Plan free had no overrides: its limits are as declared.\n"
        "The next app that starts may declare it again.\n"
    )
    done = penstock("plans", "edit", "free", "--per-hour", "2000", "--concurrency", "3")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "Plan free now has concurrency 3, per_hour 2,000, for 1 account."
        " `penstock plans reset free` returns to the declared options.\n"
    )
    *_, free = penstock("plans").out.splitlines()
    assert free.split()[2:4] == ["3", "2000"]
    assert free.split()[-2:] == ["per_hour,", "concurrency"]
    row = plans.execute("select concurrency from penstock.account where name = 'u1'").fetchone()
    assert row == (3,)
    edited = json.loads(
        penstock(
            "plans",
            "edit",
            "pro",
            "--priority",
            "-5",
            "--weight",
            "2",
            "--first-job",
            "0",
            "--json",
        ).out
    )
    assert edited["overrides"] == {"priority": -5, "weight": 2, "first_job": 0}
    assert (edited["priority"], edited["weight"], edited["first_job"]) == (-5, 2, 0)
    done = penstock("plans", "reset", "free")
    assert done.out == (
        "Plan free is as declared again; removed per_hour, concurrency.\n"
        "The next app that starts may declare it again.\n"
    )
    answer = json.loads(penstock("plans", "reset", "pro", "--json").out)
    assert (answer["overrides"], answer["priority"], answer["weight"]) == ({}, 10, 8)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["edit", "gold", "--weight", "2"], 1, "there is no plan gold"),
        (["reset", "gold"], 1, "there is no plan gold; known are pro, free."),
        (["reset", "fre"], 1, "there is no plan fre; known are pro, free. Did you mean free?"),
        (["edit", "free"], 2, "name an option to change: --priority"),
        (["edit", "free", "--per-hour", "0"], 2, "--per-hour"),
        (["edit", "free", "--per-hour", "-1"], 2, "--per-hour"),
        (["edit", "free", "--per-hour", "1.5"], 2, "--per-hour"),
        (["edit", "free", "--per-hour", "9" * 30], 2, "--per-hour"),
        (["edit", "free", "--concurrency", "0"], 2, "--concurrency"),
        (["edit", "free", "--weight", "1001"], 2, "--weight"),
        (["edit", "free", "--priority", "1001"], 2, "--priority"),
        (["edit", "free", "--first-job", "-1001"], 2, "--first-job"),
        (["edit", "free", "--colour", "red"], 2, "--colour"),
        (["edit"], 2, "PLAN"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_mistakes_are_sentences(
    penstock: Penstock, plans: psycopg.Connection, words: list[str], code: int, says: str
) -> None:
    done = penstock("plans", *words)
    assert (done.code, done.out) == (code, "")
    assert says in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err
    row = plans.execute("select from penstock.plan where overrides <> '{}'").fetchone()
    assert row is None, "nothing was changed"
