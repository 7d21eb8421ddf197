"""Guards of clock_steps.sql: the times that are corrected after the server's clock was set."""

from mutation.scene import SIGN, Scene, catches
from support import factory

BACK = "update penstock.test_clock set moved = moved - interval '1 hour'"
STEP = "select penstock.clock_went_back()"


@catches("clock_went_back: beat ahead")
async def a_silent_worker_gets_no_new_lease(s: Scene) -> None:
    await s.worker(lease="15 seconds")
    await s.clock.advance("1m")
    await s.conn.execute(STEP)
    await factory.recover(s.conn)
    assert await s.value("select lost_at from penstock.worker") is not None


@catches("clock_went_back: updated ahead")
async def a_correctly_dated_deadline_stays(s: Scene) -> None:
    await s.running()
    before = await s.value("select deadline_at from penstock.job")
    await s.clock.advance("1m")
    await s.conn.execute(STEP)
    assert await s.value("select deadline_at from penstock.job") == before


@catches("clock_went_back: begun")
async def a_time_that_a_caller_set_stays(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.submit(s.conn, delay_seconds=600)
    before = await s.value("select run_at from penstock.job")
    await s.conn.execute(BACK)
    await s.conn.execute(STEP)
    assert await s.value("select run_at from penstock.job") == before


@catches("clock_went_back: tried ahead")
async def a_delayed_message_is_not_sent_early(s: Scene) -> None:
    await s.conn.execute(
        "insert into penstock.delivery (id, job_id, account_id, event, url, host, trusted,"
        " created_at, tries, next_at, last_at)"
        " select gen_random_uuid(), gen_random_uuid(), 0, 'job.succeeded',"
        " 'https://a.example/', 'a.example', false, penstock.clock(), 1,"
        " penstock.clock() + interval '1 hour', penstock.clock()"
    )
    await s.clock.advance("1m")
    before = await s.value("select next_at from penstock.delivery")
    await s.conn.execute(STEP)
    assert await s.value("select next_at from penstock.delivery") == before


@catches("postpone_deadlines: its own")
async def a_worker_postpones_what_it_runs_and_nothing_else(s: Scene) -> None:
    await s.running()
    other = await s.worker()
    assert await s.value(_POSTPONE, other) == 0


@catches("postpone_deadlines: from before")
async def an_attempt_that_began_after_the_step_keeps_its_deadline(s: Scene) -> None:
    worker, _ = await s.running()
    await s.conn.execute(BACK)
    assert await s.value(_POSTPONE, worker) == 0


@catches("postpone_deadlines: outside")
async def only_its_own_worker_postpones_an_attempt(s: Scene) -> None:
    await s.running()
    assert await s.value(_POSTPONE, None) == 0


@catches("postpone_deadlines: outside, from before")
async def a_timed_out_attempt_from_after_the_step_stays_timed_out(s: Scene) -> None:
    before = await s.clock.now()
    await s.clock.advance("1h")
    _, start = await s.awaiting()
    await s.clock.advance("1d")
    answer = await factory.call_back(s.conn, start["id"], start["attempt"], SIGN, "progress")
    assert answer == "accepted"
    assert await s.value(_POSTPONE_SINCE, before) == 0


@catches("postpone_deadlines: not over")
async def a_timed_out_attempt_from_before_the_step_stays_timed_out(s: Scene) -> None:
    await s.awaiting()
    await s.clock.advance("1d")
    assert await s.value(_POSTPONE, None) == 0


@catches("postpone_deadlines: once")
async def a_second_upkeep_worker_finds_nothing_to_postpone(s: Scene) -> None:
    await s.awaiting()
    before = await s.clock.now()
    await s.clock.advance("1h")
    assert [await s.value(_POSTPONE_SINCE, before) for _ in range(2)] == [1, 0]


_POSTPONE = "select penstock.postpone_deadlines($1, '1 hour', penstock.clock())"
_POSTPONE_SINCE = "select penstock.postpone_deadlines(null, '1 hour', $1)"
