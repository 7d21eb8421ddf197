"""The referee of the campaign reports every fault of a run, and nothing else."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from fire import figures
from fire.logs import (
    OUTPUTS,
    Ack,
    Act,
    Call,
    Entry,
    Exit,
    Log,
    Message,
    Sample,
    Sight,
    model_name,
)
from fire.referee import Verdict, judge
from fire.small import KNOWN, Small

Change = Callable[[Any], Any]
Spoil = Callable[[Path], None]


@pytest.fixture
async def small(database: str, conn: asyncpg.Connection, tmp_path: Path) -> Small:
    run = Small(database, conn, tmp_path)
    await run.run()
    return run


async def judged(folder: Path, conn: asyncpg.Connection) -> Verdict:
    return await judge(folder, conn, known=[KNOWN])


def entry(kind: type[Entry], which: Change, change: Change) -> Spoil:
    """Replace the lines for which `which` is true by the results of `change`."""

    def spoil(folder: Path) -> None:
        lines = kind.read(folder)
        assert any(which(line) for line in lines)
        (folder / kind.file).unlink()
        log = Log(folder)
        for line in lines:
            for one in change(line) if which(line) else [line]:
                log.write(one)
        log.close()

    return spoil


def tag(name: str, word: str | None = None) -> Change:
    return lambda line: line.tag == name and word in {None, getattr(line, "word", None)}


def has(field: str, value: object) -> Change:
    return lambda line: getattr(line, field) == value


def is_retry(line: Any) -> bool:
    return line.retry_of is not None


def every(_: object) -> bool:
    return True


def gone(_: object) -> list[Any]:
    return []


def twice(line: Any) -> list[Any]:
    return [line, line]


def to(**changes: Any) -> Change:
    return lambda line: [replace(line, **changes)]


def more(**changes: Any) -> Change:
    return lambda line: [line, replace(line, **changes)]


def earlier(line: Any) -> list[Any]:
    return [replace(line, at=line.at - 60)]


def output(text: str) -> Spoil:
    def spoil(folder: Path) -> None:
        with (folder / OUTPUTS / "w1.log").open("a") as file:
            file.write(text + "\n")

    return spoil


def of(name: str) -> str:
    return f"payload ->> 'tag' = '{name}'"


def payload(name: str, **fields: Any) -> str:
    return f"{UPDATE_FINISHED} set payload = payload || '{json.dumps(fields)}' where {of(name)}"


def failed(name: str, cls: str, reason: str | None = None) -> str:
    error = json.dumps({"class": cls, "message": "it failed", "reason": reason})
    return f"{UPDATE_FINISHED} set status = 'failed', error = '{error}' where {of(name)}"


def blocked(job: str, *, worker: str = "w1", seconds: float = 8, ago: float = 0) -> Spoil:
    """A block of the loop: from before attempt 1 of f1 was settled until after it."""

    def spoil(folder: Path) -> None:
        [end] = [act for act in Act.read(folder) if act.tag == "f1" and act.attempt == 1][:1]
        name = end.job if job == "itself" else job
        log = Log(folder)
        for word, at in (("block", -seconds + 0.5), ("unblock", 0.5)):
            act = Act(job=name, attempt=1, tag="b", word=word, worker=worker)  # type: ignore[arg-type]
            log.write(replace(act, at=end.at + at - ago))
        log.close()

    return spoil


UPDATE_FINISHED = "update penstock.finished"
FINISHED = f"penstock.finished where {of('o1')}"
LIVE = "select penstock.submit_job('quick', '{\"tag\": \"d2\"}')"
UNTOLD = f"""
insert into penstock.pending_on_finish (job_id, kind_id, next_at)
select id, kind_id, now() from {FINISHED}
"""
ONE_MORE = f"""
insert into penstock.attempt (job_id, attempt, started_at, ended_at, outcome)
select id, 2, now(), now(), 'lost' from {FINISHED}
"""
TWO_ENDS = """
alter table penstock.attempt drop constraint outcome_is_known;
update penstock.attempt set outcome = 'succeeded'
"""
TWO_ROWS = f"""
alter table penstock.finished drop constraint finished_pkey cascade;
insert into penstock.finished select * from {FINISHED}
"""
FINE_WEATHER = f"""
update penstock.queue set recovery = 1;
update penstock.attempt set started_at = started_at - interval '1 day',
  ended_at = ended_at - interval '1 day';
{failed("a1", "worker_lost", "stuck_exhausted")}
"""
NO_DELIVERY = f"delete from penstock.delivery where job_id = (select id from {FINISHED})"
TWICE_GRANTED = """
select penstock.grant_credits('u1', 1, null, 'g9');
alter table penstock.ledger disable trigger user;
drop index penstock.ledger_ref_idx;
update penstock.ledger set ref = 'g1' where ref = 'g9'
"""
CHARGED_WHOLLY = """
alter table penstock.resolution disable trigger user;
update penstock.resolution set charged = 6, refunded = 0
"""
CALLED_TWICE = """
alter table public.fire_done drop constraint fire_done_pkey;
insert into public.fire_done select * from public.fire_done
"""
STUCK = "a queued job starts when it may: 1, queue q"
OVER_TIME = failed("f1", "timeout") + " and retry_of is null"
ODD_OVER_TIME = f"update penstock.kind set name = 'odd' where name = 'quick'; {OVER_TIME}"
TRACEBACK = "Traceback (most recent call last):\n  File x\nKeyError: 'x'"

# The message of each rule, and the damage: a statement, or changed lines of a witness.
SPOILT: dict[str, list[tuple[str, str | Spoil | tuple[str, Spoil]]]] = {
    "1 accepted": [
        ("was accepted and is not there", f"delete from {FINISHED}"),
        ("has 0 jobs", f"delete from {FINISHED}"),
        ("was refused and has jobs", entry(Ack, tag("o1"), to(fate="refused"))),
        ("was rolled_back and has jobs", entry(Ack, tag("o1"), to(fate="rolled_back"))),
        ("was used by 2 requests", entry(Ack, tag("o1"), twice)),
        ("and is not there", entry(Ack, tag("r1"), to(fate="accepted", job="x"))),
        ("no client has requested it", entry(Ack, tag("o1"), gone)),
        ("was accepted once and has 2 jobs", payload("o1", tag="o2")),
        ("was asked for once and has 2 jobs", payload("o1", tag="d1")),
        ("that no client knows of", entry(Ack, is_retry, gone)),
        ("are not there", entry(Ack, is_retry, more(job="x"))),
    ],
    "2 finished": [
        ("queued at attempt 0) has not finished", LIVE),
        ("on_finish callbacks have not run", UNTOLD),
    ],
    "3 once": [
        ("was started 2 times", entry(Act, tag("o1", "start"), twice)),
        ("is in no history", entry(Act, tag("o1", "start"), more(attempt=2))),
        ("that no handler began", entry(Act, tag("o1", "start"), gone)),
        ("has attempts [1, 2]", ONE_MORE),
        ("has attempts [2]", "delete from penstock.attempt"),
        ("was finished by attempts [1, 2]", TWO_ENDS),
        (
            "result of another attempt",
            f"{UPDATE_FINISHED} set result = '{{\"attempt\": 1}}' where {of('a1')}",
        ),
        ("has 2 rows", TWO_ROWS),
    ],
    "4 blameless": [
        ("was meant to fail", payload("o1", fails=True)),
        ("failed, and was not meant to", payload("f1", fails=False)),
        ("failed for an outage", failed("f1", "unavailable")),
        ("failed for an outage", failed("f1", "config")),
        ("was lost 2 times, and 3 are free", failed("a1", "worker_lost", "stuck_exhausted")),
        ("attempt 1 was lost in fine weather", FINE_WEATHER),
    ],
    "5 calls": [
        ("by an unknown attempt", entry(Act, tag("a1", "start"), gone)),
        ("by an unknown attempt", entry(Call, every, more(model=model_name("a1", 7)))),
        ("by an unknown attempt", entry(Call, every, more(model=model_name("x", 1)))),
        ("by an unknown attempt", entry(Call, every, to(at=1.0))),
        ("was called 2 times", entry(Call, every, twice)),
        ("without a whole answer", entry(Call, every, gone)),
        ("without a whole answer", entry(Call, every, to(gone=True))),
        ("without a whole answer", entry(Call, every, to(status=500))),
        ("without a whole answer", entry(Call, every, to(model=model_name("a1", 1)))),
    ],
    "6 webhooks": [
        ("none was left to be sent", NO_DELIVERY),
        ("id that is of no delivery", entry(Message, every, to(id="x"))),
        ("was not received", entry(Message, has("answered", 200), gone)),
        ("was not received", entry(Message, has("answered", 200), to(answered="hang"))),
        ("wrong signature", entry(Message, every, to(signature=False))),
        ("under the id of another", entry(Message, every, to(job="x"))),
        ("under the id of another", entry(Message, every, to(event="job.failed"))),
        ("before the end", entry(Message, every, to(at=1.0))),
        ("not delivered", "update penstock.delivery set delivered_at = null"),
        ("reports another outcome", "update penstock.delivery set event = 'job.failed'"),
    ],
    "7 books": [
        ("account u1", "update penstock.account set balance = balance + 1 where name = 'u1'"),
        ("was granted g1 2 times", TWICE_GRANTED),
        ("2 of 3 and was charged 6 of 6", CHARGED_WHOLLY),
        ("was charged 4 of 6", failed("p1", "bug")),
        ("was accepted and is not there", entry(Ack, tag("g1"), more(tag="g2"))),
        ("was refused and is there", entry(Ack, tag("g1"), to(fate="refused"))),
    ],
    "8 limits": [
        ("2 of 1 run", entry(Sample, every, more(word="breach", what="2 of 1 run"))),
        ("0 snapshots were sound", entry(Sample, every, to(word="away"))),
    ],
    "9 on_finish": [
        ("on_finish did not run", "delete from public.fire_done"),
        (
            "not a finished job of its kind",
            "insert into public.fire_done values (gen_random_uuid(), 1)",
        ),
        ("on_finish got attempt 2", "update public.fire_done set attempt = 2"),
        ("written by no on_finish", entry(Act, tag("p1", "on_finish"), gone)),
        ("on_finish ran 2 times", CALLED_TWICE),
    ],
    "10 invariants": [
        ("check() found", "update penstock.gate set running = 1"),
        ("reconcile() found", "update penstock.gate set running = 1"),
    ],
    "11 order": [("ran at the same time", entry(Act, tag("o2", "start"), earlier))],
    "12 watchers": [
        ("saw version 2 after 3", entry(Sight, has("event", "done"), to(version=2))),
        ("saw it failed, and it is", entry(Sight, has("version", 3), to(status="failed"))),
        ("did not see it", entry(Sight, has("status", "succeeded"), to(status="running"))),
        (
            "running after it was succeeded",
            entry(Sight, has("event", "done"), to(status="running")),
        ),
    ],
    "13 processes": [
        ("w1 ended by itself with -9", entry(Exit, every, to(meant=False))),
        ("w1 ended by itself with 1", entry(Exit, every, to(meant=False, code=1))),
        ("w1.log:5: Traceback", output(TRACEBACK)),
        ("KeyError: 'x'", output(TRACEBACK)),
        ("[KeyError at", output("ERROR penstock: it failed [KeyError at /x.py:3]")),
        ("never retrieved", output("Task exception was never retrieved")),
    ],
    "14 moves": [
        ("a queued job starts", entry(Sample, every, more(word="stuck", what=STUCK))),
    ],
    "15 blocked loops": [
        ("was counted as timeout, while job other blocked w1", (OVER_TIME, blocked("other"))),
        ("was counted as stalled", (OVER_TIME.replace("timeout", "stalled"), blocked("other"))),
    ],
    "16 odd exceptions": [
        ("its handler raised", (ODD_OVER_TIME, entry(Ack, is_retry, to()))),
    ],
}

# Records that resemble a breach of a rule and are none.
INNOCENT: list[tuple[str, Spoil]] = [
    # The blocking job times out like any other.
    (OVER_TIME, blocked("itself")),
    # A short block; a block of another worker; a block before the attempt.
    (OVER_TIME, blocked("other", seconds=1.0)),
    (OVER_TIME, blocked("other", worker="w2")),
    (OVER_TIME, blocked("other", ago=600)),
    # A failure for its own reason.
    (OVER_TIME.replace("timeout", "bug"), blocked("other")),
]


async def test_a_sound_run_has_no_breaches(small: Small, conn: asyncpg.Connection) -> None:
    """A second attempt beside a lost one, a repeated webhook, and doubts are no breach."""
    verdict = await judged(small.folder, conn)
    assert verdict.breaches == {}
    counts = verdict.figures["counts"]
    assert counts["jobs"] == 8
    assert counts["jobs, failed"] == 2
    assert counts["starts"] == 8
    assert counts["starts, lost"] == 1
    assert counts["webhooks sent, answered 503"] == 3
    assert verdict.figures["seconds"]["restart_after_kill"]["n"] == 1
    assert "| faults, kill_worker | 1 |" in figures.render(verdict.figures)
    json.dumps(verdict.figures)


@pytest.mark.unsound
@pytest.mark.parametrize("rule", SPOILT)
async def test_faults_of_a_run_are_found(small: Small, conn: asyncpg.Connection, rule: str) -> None:
    for number, (cry, spoil) in enumerate(SPOILT[rule]):
        folder = small.folder.with_name(f"{small.folder.name}-{number}")
        shutil.copytree(small.folder, folder)
        change = conn.transaction(isolation="repeatable_read")
        await change.start()
        for one in spoil if isinstance(spoil, tuple) else (spoil,):
            if isinstance(one, str):
                await conn.execute(one)
            else:
                one(folder)
        with pytest.raises(AssertionError) as caught:
            await judged(folder, conn)
        await change.rollback()
        output = str(caught.value)
        assert f"{rule}: " in output
        assert cry in output.partition(f"{rule}: ")[2]
    await judged(small.folder, conn)


@pytest.mark.parametrize("case", range(len(INNOCENT)))
async def test_only_the_blocking_job_gets_a_failure_and_others_for_their_own_faults(
    small: Small, conn: asyncpg.Connection, case: int
) -> None:
    statement, spoil = INNOCENT[case]
    await conn.execute(statement)
    spoil(small.folder)
    await judged(small.folder, conn)


async def test_an_attempt_that_its_worker_lost_may_run_on(
    small: Small, conn: asyncpg.Connection
) -> None:
    """R-F2: after that the queue's limit does not apply to it."""
    entry(Act, tag("o1", "end"), lambda act: [replace(act, at=act.at + 60)])(small.folder)
    await judged(small.folder, conn)


async def test_a_program_started_without_a_server_may_end(
    small: Small, conn: asyncpg.Connection
) -> None:
    """R-F5: it reports why, and is restarted; one that has worked for long may not end."""
    output("penstock: The database cannot be reached: refused")(small.folder)
    young = entry(Exit, every, lambda one: [replace(one, meant=False, code=1, began=one.at - 1)])
    young(small.folder)
    await judged(small.folder, conn)
    entry(Exit, every, lambda one: [replace(one, began=one.at - 60)])(small.folder)
    with pytest.raises(AssertionError, match="w1 ended by itself with 1"):
        await judged(small.folder, conn)
