"""`submit`, `show` and `cancel` of jobs with a price, and of requests that are split."""

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.shapes import Penstock

PRICE = {"per": "images", "by": "quality", "standard": 1, "high": 3}

APP = """
from penstock import Fail, Job, Penstock

app = Penstock()
pictures = app.queue("pictures")

@app.job(queue=pictures, price={"per": "images", "each": 2}, split=("images", 4))
async def draw(images: int, job: Job, broken: int = 0) -> list:
    if images == broken:
        raise Fail("no paint left")
    return ["picture"] * images
"""


@pytest.fixture
def priced(db: psycopg.Connection) -> psycopg.Connection:
    """Kinds with a price; `draw` is split into jobs of four; u1 has 30 credits."""
    for kind, options in {
        "picture": {"price": PRICE},
        "draw": {"price": {"per": "images", "each": 2}, "split_field": "images", "split_most": 4},
    }.items():
        db.execute("select penstock.declare_kind(%s, 'model', %s)", [kind, json.dumps(options)])
    db.execute("select penstock.grant_credits('u1', 30)")
    return db


def submitted(penstock: Penstock, kind: str, *words: str, **payload: Any) -> str:
    done = penstock("submit", kind, "--data", json.dumps(payload), *words)
    assert (done.code, done.err) == (0, ""), done
    return done.out


def read_json(penstock: Penstock, *words: str) -> Any:
    done = penstock(*words, "--json")
    assert (done.code, done.err) == (0, ""), done
    return json.loads(done.out)


def facts(penstock: Penstock, its_id: str) -> dict[str, str]:
    lines = penstock("show", its_id).out.split("\n\n")[0].splitlines()
    return {line[:12].strip(): line[12:] for line in lines}


@pytest.mark.usefixtures("priced")
def test_a_submit_shows_the_remaining_balance(penstock: Penstock) -> None:
    """G9, G18"""
    out = submitted(penstock, "picture", "--account", "u1", images=4, quality="high")
    assert re.fullmatch(r"Submitted job \S+, now queued\. The balance is 18\.\n", out)
    job = json.loads(
        submitted(penstock, "picture", "--account", "u1", "--json", images=1, quality="standard")
    )
    assert (job["balance"], job["credits"]["reserved"]) == (17, 1)
    free = submitted(penstock, "model", "--account", "u1")
    assert "balance" not in free, "it cost nothing"


def test_too_few_credits_are_a_sentence_with_balance_and_price(
    penstock: Penstock, priced: psycopg.Connection
) -> None:
    """G2"""
    data = json.dumps({"images": 11, "quality": "high"})
    done = penstock("submit", "picture", "--data", data, "--account", "u1")
    assert (done.code, done.out) == (1, "")
    sentence, hint = done.err.splitlines()
    assert sentence == "penstock: account u1 has 30 credits, and this needs 33"
    assert hint == "`penstock account grant u1 AMOUNT` adds credits."
    assert priced.execute("select from penstock.job").rowcount == 0


def test_too_many_submits_are_a_sentence_that_says_when_to_try_again(
    penstock: Penstock, priced: psycopg.Connection
) -> None:
    """G7"""
    priced.execute("""select penstock.declare_plan('free', '{"per_hour": 1}')""")
    priced.execute("select penstock.set_account_plan('u1', 'free')")
    submitted(penstock, "model", "--account", "u1")
    done = penstock("submit", "model", "--account", "u1")
    assert (done.code, done.out) == (1, "")
    sentence, wait = done.err.splitlines()
    assert sentence.startswith(
        "penstock: plan free allows 1 job an hour, and account u1 has used them;"
    )
    assert read_json(penstock, "account", "show", "u1")["next_submit_at"] in sentence
    assert wait == "Try again in 60 min."


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["picture", "--data", '{"images": 1, "quality": "high"}'], "account"),
        (["picture", "--data", '{"images": 0, "quality": "high"}', "--account", "u1"], "images"),
        (["picture", "--data", '{"images": 1, "quality": "best"}', "--account", "u1"], "quality"),
        (["picture", "--data", '{"images": "2", "quality": "high"}', "--account", "u1"], "images"),
        (["draw", "--data", "{}", "--account", "u1"], "images"),
    ],
)
def test_a_payload_without_a_price_is_refused_with_the_field(
    penstock: Penstock, priced: psycopg.Connection, words: list[str], says: str
) -> None:
    """G18"""
    done = penstock("submit", *words)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert "Traceback" not in done.err
    assert priced.execute("select from penstock.job").rowcount == 0


def finish(db: psycopg.Connection, outcome: str = "succeeded") -> None:
    row = db.execute("select penstock.register_worker('w1')").fetchone()
    assert row
    for job, attempt in db.execute(
        "select id, attempt from penstock.claim_jobs(%s, 'model', 10)", [row[0]]
    ).fetchall():
        db.execute(
            "select penstock.finish_jobs(%s, array[%s], array[%s], array[%s])",
            [row[0], job, attempt, outcome],
        )


def test_a_job_is_shown_with_its_credits(penstock: Penstock, priced: psycopg.Connection) -> None:
    """G3, G5"""
    priced.execute("""select penstock.declare_plan('free', '{"priority": 50, "first_job": -20}')""")
    priced.execute("select penstock.create_account('u2', 'free')")
    priced.execute("select penstock.grant_credits('u2', 30)")
    words = ("--account", "u2", "--json")
    first, second = (
        json.loads(submitted(penstock, "picture", *words, images=2, quality="high"))["id"]
        for _ in range(2)
    )
    assert facts(penstock, first)["priority"] == "30 (first job of its account)"
    assert facts(penstock, second)["priority"] == "50"
    assert facts(penstock, first)["credits"] == "6 reserved"
    penstock("cancel", second)
    finish(priced)
    assert facts(penstock, first)["credits"] == "6 reserved, 6 charged, 0 refunded"
    assert facts(penstock, second)["credits"] == "6 reserved, 0 charged, 6 refunded"
    free = json.loads(submitted(penstock, "model", "--json"))["id"]
    assert "credits" not in facts(penstock, free)


def test_a_split_request_is_one_batch(penstock: Penstock, priced: psycopg.Connection) -> None:
    """G11"""
    out = submitted(penstock, "draw", "--account", "u1", images=9)
    found = re.fullmatch(
        r"Submitted batch (\S+) of 3 jobs, now queued\. The balance is 12\.\n", out
    )
    assert found
    [batch] = found.groups()
    shown = facts(penstock, batch)
    assert (shown["batch"], shown["status"], shown["account"]) == (batch, "queued", "u1")
    assert (shown["jobs"], shown["credits"]) == ("3: 3 queued", "18 reserved")
    head, *rows = penstock("show", batch).out.split("\n\n")[1].splitlines()
    assert head.startswith("ID")
    assert len(rows) == 3
    assert facts(penstock, rows[0].split()[0])["batch"] == batch
    finish(priced)
    shown = facts(penstock, batch)
    assert (shown["status"], shown["jobs"]) == ("succeeded", "3: 3 succeeded")
    assert shown["credits"] == "18 reserved, 18 charged, 0 refunded"
    assert read_json(penstock, "show", batch)["progress"]["done"] == 3


@pytest.mark.usefixtures("priced")
def test_a_batch_is_cancelled_by_its_id(penstock: Penstock) -> None:
    """G13, G3"""
    batch = json.loads(submitted(penstock, "draw", "--account", "u1", "--json", images=8))
    assert (batch["total"], batch["balance"], batch["deduplicated"]) == (2, 14, False)
    done = penstock("cancel", batch["id"])
    assert (done.code, done.out) == (0, f"Batch {batch['id']} of 2 jobs: 2 cancelled.\n")
    assert read_json(penstock, "cancel", batch["id"])["status"] == "cancelled"
    assert read_json(penstock, "account", "show", "u1")["balance"] == 30


@pytest.fixture
def worker(database: str, tmp_path: Path, db: psycopg.Connection) -> Iterator[str]:
    """Run a worker for kind `draw`; yield the name of its app."""
    assert database
    name = f"app_{uuid.uuid4().hex[:12]}"
    (tmp_path / f"{name}.py").write_text(APP)
    db.execute("select penstock.grant_credits('u1', 100)")
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "worker", f"{name}:app"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout
        process.stdout.readline()
        yield f"{name}:app"
        process.terminate()


@pytest.mark.parametrize("by_app", [True, False], ids=["through the app", "through SQL"])
def test_waiting_for_a_split_request_is_waiting_for_all_of_its_jobs(
    penstock: Penstock, worker: str, by_app: bool
) -> None:
    """G11"""
    words = ["--account", "u1", "--wait", *(["--app", worker] if by_app else [])]
    done = penstock("submit", "draw", "--data", '{"images": 9}', *words)
    assert done.code == 0, done
    assert json.loads(done.out) == [["picture"] * 4, ["picture"] * 4, ["picture"]]
    accepted, summary = done.err.splitlines()
    assert re.match(r"Submitted batch \S+ of 3 jobs, now \w+\. The balance is 82\.", accepted)
    assert summary.endswith(": 3 of 3 jobs succeeded.")

    done = penstock("submit", "draw", "--data", '{"images": 9, "broken": 1}', *words)
    assert done.code == 0, "one failed job does not fail the batch"
    assert json.loads(done.out) == [["picture"] * 4, ["picture"] * 4, None]
    assert done.err.splitlines()[1].endswith(": 2 of 3 jobs succeeded.")
    assert done.err.splitlines()[2].endswith(" failed: invalid_request: no paint left")

    failed = penstock("submit", "draw", "--data", '{"images": 8, "broken": 4}', *words, "--json")
    assert failed.code == 1
    batch = json.loads(failed.out)
    assert (batch["status"], batch["failed"]) == ("failed", 2)
    assert batch["credits"] == {"reserved": 16, "charged": 0, "refunded": 16}
    assert read_json(penstock, "account", "show", "u1")["balance"] == 100 - 18 - 16
