"""Every verb of the engine, through a pool: what goes in, what comes back."""

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import (
    Claimed,
    Deferred,
    Error,
    Failed,
    Outcome,
    Released,
    Retry,
    Snoozed,
    Succeeded,
    Verdict,
)
from penstock.engine.jobs.callbacks import Item, Resolved
from penstock.engine.jobs.jobs import NewJob, Submitted
from penstock.engine.maintenance import Recovered, Repair, Violation
from penstock.engine.states import JobStatus
from penstock.errors import Conflict, Invalid, NotFound
from support.clock import Clock
from support.shapes import Connect
from support.waiting import eventually

OOPS = Error("unavailable", "no answer")
NOBODY = UUID(int=7)


async def started(engine: Engine, account: str | None = None) -> tuple[int, Claimed]:
    """A worker that runs the only job."""
    await engine.queues.declare("q")
    await engine.queues.declare_kind("k", "q")
    worker = await engine.workers.register("w")
    await engine.jobs.submit(NewJob(kind="k", payload={"n": 1}, account=account))
    [job] = await engine.jobs.claim(worker, "q", 1)
    return worker, job


async def test_a_job_goes_from_submit_to_its_result(engine: Engine, clock: Clock) -> None:
    """F11: there is nothing beside Postgres."""
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    await clock.freeze(noon)
    await engine.queues.declare("q", concurrency=3)
    await engine.queues.declare_kind("mark", "q", priority_offset=2)
    worker = await engine.workers.register("host-1")
    new = NewJob(
        kind="mark",
        payload={"essay": "…"},
        account="u1",
        dedupe_key="d",
        topic="t",
        run_at=noon,
        max_attempts=4,
        timeout=timedelta(seconds=9),
        expires=timedelta(hours=1),
        metadata={"m": 1},
    )
    ticket = await engine.jobs.submit(new)
    assert ticket == Submitted(
        ticket.id, JobStatus.QUEUED, deduplicated=False, position=1, eta_seconds=0.0, balance=0
    )
    assert await engine.jobs.submit(new) == ticket._replace(deduplicated=True)
    [job] = await engine.jobs.claim(worker, "q", 5)
    assert asdict(job) == {
        "id": ticket.id,
        "attempt": 1,
        "kind": "mark",
        "account": "u1",
        "slot_account": None,
        "topic": "t",
        "batch_id": None,
        "payload": {"essay": "…"},
        "metadata": {"m": 1},
        "failures": 0,
        "losses": 0,
        "max_attempts": 4,
        "started_epoch": noon.timestamp(),
        "timeout_seconds": 9.0,
        "unmoved_seconds": 14.0,
    }
    assert job.timeout_at == noon + timedelta(seconds=9)
    verdicts = await engine.jobs.finish(worker, [(job, Succeeded({"score": 7}))])
    assert verdicts == [Verdict(ticket.id, "done", JobStatus.SUCCEEDED)]
    shown = await engine.jobs.read(ticket.id)
    assert (shown["status"], shown["result"]) == ("succeeded", {"score": 7})


async def test_many_jobs_are_accepted_in_one_call_and_answered_in_order(engine: Engine) -> None:
    """M1"""
    await engine.queues.declare("q")
    await engine.queues.declare_kind("k", "q")
    jobs = [
        NewJob(kind="k", payload={"n": n}, dedupe_key=str(n % 900), delay=timedelta(seconds=n % 2))
        for n in range(1_000)
    ]
    tickets = await engine.jobs.submit_many(jobs)
    assert [t.deduplicated for t in tickets] == [False] * 900 + [True] * 100
    assert [t.id for t in tickets[900:]] == [t.id for t in tickets[:100]]
    assert [t.status for t in tickets[:2]] == [JobStatus.QUEUED, JobStatus.SCHEDULED]
    with pytest.raises(NotFound, match="there is no job kind nope") as caught:
        await engine.jobs.submit_many([NewJob(kind="k"), NewJob(kind="nope")])
    assert (caught.value.code, caught.value.members["index"]) == ("unknown_kind", 1)
    with pytest.raises(Invalid, match="needs a kind and a payload"):
        await engine.jobs.submit_many([])


async def test_an_idempotency_key_belongs_to_its_holder(engine: Engine) -> None:
    await engine.queues.declare("q")
    await engine.queues.declare_kind("k", "q")
    first = await engine.jobs.submit(NewJob(kind="k"), idempotency_key="i", scope="alice")
    again = await engine.jobs.submit(NewJob(kind="k"), idempotency_key="i", scope="alice")
    assert (again.id, again.replayed) == (first.id, True)
    other = await engine.jobs.submit(NewJob(kind="k"), idempotency_key="i", scope="bob")
    assert other.replayed is False
    with pytest.raises(Invalid, match="other arguments") as caught:
        await engine.jobs.submit(NewJob(kind="k", topic="t"), idempotency_key="i", scope="bob")
    assert caught.value.code == "idempotency_key_reused"


async def test_outcomes_of_one_worker_are_written_together(engine: Engine) -> None:
    await engine.queues.declare("q")
    await engine.queues.declare_kind("k", "q")
    worker = await engine.workers.register("w")
    await engine.jobs.submit_many([NewJob(kind="k", payload={"n": n}) for n in range(6)])
    jobs = sorted(await engine.jobs.claim(worker, "q", 10), key=lambda job: job.payload["n"])
    later = timedelta(minutes=1)
    outcomes: list[Outcome] = [
        Succeeded(None),
        Failed(OOPS),
        Retry(OOPS, after=later),
        Deferred(OOPS, later),
        Snoozed(timedelta(0)),
        Released(),
    ]
    answers = await engine.jobs.finish(worker, list(zip(jobs, outcomes, strict=True)))
    by_id = {verdict.job_id: verdict for verdict in answers}
    assert [by_id[job.id].status for job in jobs] == [
        JobStatus.SUCCEEDED,
        JobStatus.FAILED,
        JobStatus.SCHEDULED,
        JobStatus.SCHEDULED,
        JobStatus.QUEUED,
        JobStatus.QUEUED,
    ]
    assert await engine.jobs.finish(worker, [(jobs[0], Succeeded(None))]) == [
        Verdict(jobs[0].id, "stale", None)
    ]


async def test_a_claim_tries_twice_when_a_submitter_has_locked_the_account(
    engine: Engine, connect: Connect
) -> None:
    await engine.queues.declare("q")
    await engine.queues.declare_kind("k", "q")
    await engine.accounts.declare_plan("free", concurrency=1)
    worker = await engine.workers.register("w")
    await engine.jobs.submit(NewJob(kind="k", account="u1"))
    app, watcher = await connect(), await connect()
    async with app.transaction():
        await engine.jobs.submit(NewJob(kind="k", account="u1"), conn=app)
        claim = asyncio.create_task(engine.jobs.claim(worker, "q", 1))
        blocked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"

        async def settled() -> bool:
            return claim.done() or bool(await watcher.fetchval(blocked))

        await eventually(settled, "the second try waits for the account")
    # It waits 100 ms at most. If the commit came in time it has the job, otherwise the next claim
    # has.
    assert await claim or await engine.jobs.claim(worker, "q", 1)


async def test_a_new_limit_does_not_keep_a_running_job_from_finishing(
    engine: Engine, conn: asyncpg.Connection
) -> None:
    """G8"""
    await engine.accounts.declare_plan("free")
    worker, job = await started(engine, account="u1")
    assert job.slot_account is None
    await engine.accounts.edit_plan("free", concurrency=1)
    assert await engine.jobs.finish(worker, [(job, Succeeded(1))]) == [
        Verdict(job.id, "done", JobStatus.SUCCEEDED)
    ]
    assert await conn.fetchval("select max(running) from penstock.account") == 0


async def test_an_attempt_is_dispatched_and_called_back(engine: Engine) -> None:
    worker, job = await started(engine)
    assert await engine.callbacks.hand_over(worker, job, "a token long enough") == "done"
    assert (await engine.jobs.read(job.id))["status"] == "awaiting"
    report: dict[str, Any] = {
        "attempt": 1,
        "token": "a token long enough",
        "outcome": "succeeded",
    }
    answers = await engine.callbacks.resolve(
        [
            Item(**{**report, "job_id": job.id, "token": "some other token", "result": "0"}),
            Item(**report, job_id=job.id, result='{"image": 1}'),
            Item(**report, job_id=NOBODY, result="0"),
        ]
    )
    assert sorted(answers, key=lambda item: item.outcome) == [
        Resolved(job.id, "accepted"),
        Resolved(job.id, "invalid"),
        Resolved(NOBODY, "unknown"),
    ]
    assert (await engine.jobs.read(job.id))["result"] == {"image": 1}


async def test_a_job_is_cancelled_and_submitted_again(engine: Engine) -> None:
    worker, job = await started(engine)
    assert (await engine.jobs.cancel(job.id))["cancel_requested"] is True
    await engine.jobs.finish(worker, [(job, Retry(OOPS))])
    assert (await engine.jobs.read(job.id))["status"] == "cancelled"
    again = await engine.jobs.retry(job.id)
    assert (again["retry_of"], again["status"]) == (str(job.id), "queued")
    for call in (engine.jobs.cancel, engine.jobs.retry, engine.jobs.read):
        with pytest.raises(NotFound, match="there is no job") as caught:
            await call(NOBODY)
        assert (caught.value.code, caught.value.field) == ("unknown_job", "id")
    with pytest.raises(Conflict, match="has not finished"):
        await engine.jobs.retry(UUID(again["id"]))


async def test_workers_are_woken_by_queue(engine: Engine, connect: Connect) -> None:
    ear = await connect()
    heard: list[object] = []
    await ear.add_listener("penstock_job", lambda *args: heard.append(args[-1]))
    await engine.jobs.wake(["q", "other"])
    await ear.execute("select 1")
    assert sorted(map(str, heard)) == ["other", "q"]


async def test_a_worker_registers_beats_and_leaves(engine: Engine, clock: Clock) -> None:
    await clock.freeze()
    worker = await engine.workers.register("host-1", lease=timedelta(seconds=5))
    assert await engine.workers.beat(worker) is True
    await clock.advance("6s")
    assert await engine.upkeep.recover() == []
    assert await engine.workers.beat(worker) is False
    await engine.queues.declare("q")
    with pytest.raises(Conflict, match="marked as lost") as caught:
        await engine.jobs.claim(worker, "q", 1)
    assert caught.value.hint == "Drop its attempts and register again."
    again = await engine.workers.register("host-1")
    await engine.workers.stop(again)
    assert await engine.workers.beat(again) is False


async def test_upkeep_recovers_makes_partitions_and_prunes(engine: Engine, clock: Clock) -> None:
    """M14"""
    worker, job = await started(engine)
    await clock.advance("16s")
    assert await engine.upkeep.recover() == [
        Recovered(job.id, "lost", "done", JobStatus.QUEUED),
    ]
    assert await engine.upkeep.recover(limit=1) == []
    worker = await engine.workers.register("w2")
    [again] = await engine.jobs.claim(worker, "q", 1)
    await engine.jobs.finish(worker, [(again, Succeeded(1))])
    await clock.advance("9d")
    assert await engine.upkeep.make_partitions() > 0
    assert await engine.upkeep.make_partitions() == 0
    gone = []
    while pruned := await engine.upkeep.prune():
        gone += pruned
    assert {item.rows for item in gone} == {None}  # whole partitions
    with pytest.raises(NotFound, match="there is no job"):
        await engine.jobs.read(job.id)


@pytest.mark.unsound
async def test_upkeep_finds_and_repairs_what_is_wrong(
    engine: Engine, conn: asyncpg.Connection
) -> None:
    await engine.queues.declare("q", concurrency=1)
    assert await engine.upkeep.check() == []
    assert await engine.upkeep.reconcile() == []
    await conn.execute("update penstock.gate set running = 5")
    [found] = await engine.upkeep.check()
    assert found == Violation("L5 a queue counts its running jobs", "q", "gate says 5, 0 run")
    assert await engine.upkeep.reconcile() == [Repair("gate.running", "q", "5", "0")]
    assert await engine.upkeep.check() == []
