"""Workers that die, stop, or lose their sessions: nothing is lost, and nothing counts twice."""

import signal
import time
from typing import Any

import asyncpg
import pytest

from support.clock import Clock
from support.shapes import Scale
from support.waiting import eventually
from support.worker.crew import Crew, count, submit_many


@pytest.mark.alone
async def test_jobs_of_a_killed_worker_run_again_within_a_moment(
    crew: Crew, conn: asyncpg.Connection, record_property: Any
) -> None:
    """E6, E12, F6, M4, S1: released in milliseconds by its locks, not in 15 s by its lease."""
    doomed = await crew.start("doomed")
    jobs = await submit_many(conn, "hold_first", 50, {"gate": str(crew.gate())})
    await crew.until_noted("start", 50)
    other = await crew.start("other")
    await crew.past_grace()
    killed_at = time.time()
    doomed.kill()

    rows = await crew.until_finished(jobs)
    again = [line for line in crew.noted("start") if line.attempt == 2]
    took = max(line.at for line in again) - killed_at
    record_property("last_start_after_kill_seconds", round(took, 3))
    print(f"the last of 50 jobs began again {took:.3f} s after the kill")
    assert took < 3
    assert {line.pid for line in again} == {other.pid}
    assert count(line.job for line in crew.noted("start")) == dict.fromkeys(jobs, 2)
    assert [(row["status"], row["attempt"], row["result"]["attempt"]) for row in rows] == [
        ("succeeded", 2, 2)
    ] * 50
    assert {(row["failures"], row["crashes"], row["losses"]) for row in rows} == {(0, 0, 1)}


async def test_a_stopped_worker_that_goes_on_counts_for_nothing(
    crew: Crew, conn: asyncpg.Connection
) -> None:
    """S12, E12, F4: its late outcomes are fenced; it notices, registers again and goes on."""
    short = {"lease": 2, "beat": 0.5}
    zombie = await crew.start("zombie", **short)
    jobs = await submit_many(conn, "hold_first", 100, {"gate": str(crew.gate())})
    jobs += await submit_many(conn, "hold_first", 100, {"gate": str(crew.gate("never"))})
    await crew.until_noted("start", 200)
    await crew.start("other", **short)
    zombie.signal(signal.SIGSTOP)
    rows = await crew.until_finished(jobs)
    assert {(row["attempt"], row["result"]["attempt"]) for row in rows} == {(2, 2)}

    crew.gate().touch()  # half of its handlers return when it goes on; it drops the others
    zombie.signal(signal.SIGCONT)
    await crew.settled(zombie)
    await crew.until_noted("dropped", 100)

    async def all_over() -> bool:
        return len(crew.noted("end") + crew.noted("dropped")) == 400

    await eventually(all_over, "each of its handlers has returned, or was dropped")
    again = await crew.until_finished(jobs)
    assert again == rows
    assert "was declared lost" in zombie.log_text
    lost = await conn.fetchval("select count(*) from penstock.worker where lost_at is not null")
    assert lost == 1

    crew.started[1].kill()
    more = await submit_many(conn, "nap", 20, {"seconds": 0})
    rows = await crew.until_finished(more)
    assert {(row["attempt"], row["result"]["pid"]) for row in rows} == {(1, zombie.pid)}


@pytest.mark.timeout(150)
async def test_a_handler_that_blocks_the_loop_keeps_its_job_and_its_neighbours(
    crew: Crew, conn: asyncpg.Connection, scale: Scale
) -> None:
    """E6, S12: the heartbeat has its own thread."""
    lease: dict[str, Any] = scale({"lease": 1.5, "beat": 0.3}, {})
    seconds = scale(3.5, 30.0)
    await crew.start("blocked", **lease)
    neighbours = await submit_many(conn, "hold", 10, {"gate": str(crew.gate())})
    await crew.until_noted("start", 10)
    await crew.start("other", **lease, queues=["idle"])  # its upkeep looks after all queues
    [blocker] = await submit_many(conn, "block", 1, {"seconds": seconds})
    rows = await crew.until_finished([blocker], seconds=seconds + 10)
    crew.gate().touch()
    rows += await crew.until_finished(neighbours)
    assert {(row["status"], row["attempt"]) for row in rows} == {("succeeded", 1)}


@pytest.mark.timeout(120)
async def test_a_poison_job_fails_and_the_innocent_beside_it_finish(
    crew: Crew, conn: asyncpg.Connection, clock: Clock, scale: Scale
) -> None:
    """S2, S3, E12: lost with others twice, then alone; after three recoveries the job fails."""
    recoveries = scale(1, 3)
    await conn.execute("select penstock.edit_queue('q', $1)", {"recovery": recoveries})
    innocent = await submit_many(conn, "hold_first", 20, {"gate": str(crew.gate())})
    [poison] = await submit_many(conn, "die", 1, {"gate": str(crew.gate())})
    worker = await crew.start("victim-0")
    await crew.until_noted("start", 21)
    crew.gate().touch()

    deaths = 0
    while not await conn.fetchval("select true from penstock.finished where id = $1", poison):
        if worker.popen.poll() is not None:
            deaths += 1
            assert deaths <= recoveries + 5, "it kills without end"
            worker = await crew.start(f"victim-{deaths}")
            await conn.execute(_RECOVER_THE_DEAD)
        # Skip backoffs and pauses, so that the test need not wait for them.
        await clock.advance("5s", beats=True)
        await eventually(_settled(conn, worker), "something happens", seconds=20)
    rows = await crew.until_finished(innocent)
    assert {row["status"] for row in rows} == {"succeeded"}
    assert {(row["failures"], row["crashes"]) for row in rows} == {(0, 0)}
    [row] = await crew.until_finished([poison])
    assert (row["status"], row["error"]["reason"]) == ("failed", "stuck_exhausted")
    assert (row["failures"], row["crashes"]) == (0, recoveries)
    print(f"{deaths} deaths")


# Upkeep does this once its session is old enough.
_RECOVER_THE_DEAD = "select penstock.recover_jobs()"


def _settled(conn: asyncpg.Connection, worker: Any) -> Any:
    async def nothing_due_or_dead() -> bool:
        return worker.popen.poll() is not None or not await conn.fetchval(
            "select true from penstock.job where status in ('queued', 'running')"
            " or run_at <= penstock.clock() limit 1"
        )

    return nothing_due_or_dead


@pytest.mark.parametrize("which", [["penstock upkeep"], ["penstock heartbeat"]])
async def test_one_session_that_is_closed_does_no_harm(
    crew: Crew, conn: asyncpg.Connection, which: list[str]
) -> None:
    """S12: the other session still locks the worker's key; a new one replaces the lost one."""
    worker = await crew.start("w")
    jobs = await submit_many(conn, "hold", 5, {"gate": str(crew.gate())})
    await crew.until_noted("start", 5)
    for _ in range(3):
        await end_sessions(conn, which)
        await crew.settled(worker)
    crew.gate().touch()
    rows = await crew.until_finished(jobs)
    assert {(row["status"], row["attempt"]) for row in rows} == {("succeeded", 1)}
    assert await conn.fetchval("select count(*) from penstock.worker") == 1


async def test_when_both_sessions_close_the_worker_is_fenced_and_goes_on(
    crew: Crew, conn: asyncpg.Connection
) -> None:
    """S12: it may be declared lost in that moment; then its outcomes do not count."""
    worker = await crew.start("w")
    jobs = await submit_many(conn, "hold_first", 5, {"gate": str(crew.gate())})
    await crew.until_noted("start", 5)
    await conn.execute(_END_BOTH_AND_RECOVER)
    rows = await crew.until_finished(jobs)
    assert {(row["status"], row["attempt"]) for row in rows} == {("succeeded", 2)}
    assert "was declared lost" in worker.log_text
    [more] = await submit_many(conn, "nap", 1, {"seconds": 0})
    [row] = await crew.until_finished([more])
    assert (row["attempt"], row["result"]["pid"]) == (1, worker.pid)


# Upkeep runs at the worst moment: before either session is back.
_END_BOTH_AND_RECOVER = """
do $$
declare
  v_pids integer[] := array(select pid from pg_stat_activity where datname = current_database()
    and application_name in ('penstock upkeep', 'penstock heartbeat'));
begin
  perform pg_terminate_backend(pid) from unnest(v_pids) pid;
  while exists (select from pg_locks where pid = any (v_pids)) loop
    perform pg_sleep(0.001);
  end loop;
  perform penstock.recover_jobs();
end $$
"""


async def end_sessions(conn: asyncpg.Connection, names: list[str]) -> None:
    await conn.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and application_name = any($1)",
        names,
    )


async def test_a_step_that_was_kept_is_not_run_again_after_a_kill(
    crew: Crew, conn: asyncpg.Connection
) -> None:
    """F6, E12: processing goes on where it was."""
    doomed = await crew.start("doomed")
    [job] = await submit_many(conn, "keep_and_hold", 1, {"gate": str(crew.gate())})
    await crew.until_noted("kept", 1)
    doomed.kill()
    await crew.start("other")
    await conn.execute(_RECOVER_THE_DEAD)
    [row] = await crew.until_finished([job])
    assert row["result"] == {"attempt": 2, "kept": 1}
    assert [line.word for line in crew.noted()] == ["step", "kept", "kept"]


async def test_a_kill_within_the_finishing_transaction_leaves_neither_half(
    crew: Crew, conn: asyncpg.Connection
) -> None:
    """E12, M4: the app's row and the outcome are written together, once."""
    await conn.execute("create table bill (job_id uuid primary key, attempt integer)")
    doomed = await crew.start("doomed")
    [job] = await submit_many(conn, "paid", 1, {"gate": str(crew.gate())})
    await crew.until_noted("billed", 1)
    doomed.kill()
    await crew.start("other")
    await conn.execute(_RECOVER_THE_DEAD)
    [row] = await crew.until_finished([job])
    bills = await conn.fetch("select job_id, attempt from bill")
    assert [tuple(bill) for bill in bills] == [(job, 2)]
    assert (row["attempt"], row["result"]["attempt"]) == (2, 2)
