"""Guards of credits, prices and plans: no credits are spent twice or beyond the balance."""

import asyncpg
import pytest

from mutation.scene import Scene, catches
from support import factory
from support.interleave import Step

GRANT = "select penstock.grant_credits($1, $2)"
DEDUCT = "select penstock.deduct_credits('u1', $1, null, $2)"


async def priced(s: Scene, price: int = 4, balance: int = 100) -> None:
    await factory.queue(s.conn)
    await s.conn.execute("select penstock.declare_kind('q', 'q', $1)", {"price": price})
    await s.conn.execute(GRANT, "u1", balance)


async def balance(s: Scene) -> int:
    found: int = await s.value("select balance from penstock.account where name = 'u1'")
    return found


async def refused(call: object, sqlstate: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as caught:
        await call  # type: ignore[misc]
    assert caught.value.sqlstate == sqlstate, caught.value


@catches("_book: enough", raises=AssertionError, match="balance_not_negative")
async def no_account_spends_more_than_its_balance(s: Scene) -> None:
    await priced(s, balance=3)
    await refused(factory.submit(s.conn, account="u1"), "PS402")
    assert await balance(s) == 3


@catches("_resolve: something is left", raises=asyncpg.CheckViolationError)
async def a_full_charge_writes_no_line(s: Scene) -> None:
    await priced(s)
    worker = await s.worker()
    await factory.submit(s.conn, account="u1")
    [row] = await s.start(worker)
    await factory.finish(s.conn, worker, [row])
    assert await s.value("select count(*) from penstock.ledger") == 2


@catches("_lock_account: held", replace=("for no key update", ""))
async def two_deductions_at_once_add_up(s: Scene) -> None:
    await s.conn.execute(GRANT, "u1", 100)
    one, two = await s.connect(), await s.connect()
    async with one.transaction():
        await one.execute(DEDUCT, 10, "a")
        other = Step(two, two.fetchval(DEDUCT, 10, "b"))
        await other.waits(s.conn)
    assert (await other)["balance"] == 80


@catches("refund_credits: was deducted")
async def only_what_was_deducted_is_refunded(s: Scene) -> None:
    await s.conn.execute("select penstock.grant_credits('u1', 100, null, 'payment')")
    await refused(s.conn.execute("select penstock.refund_credits('u1', 'payment')"), "PS404")


@catches(
    "_count_requests: within the plan",
    replace=("u.requested + coalesce(r.used, 0) > p.per_hour", "false"),
)
async def a_plan_limits_submits_per_hour(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, per_hour=1)
    await factory.submit(s.conn, account="u1")
    await refused(factory.submit(s.conn, account="u1"), "PS429")


@catches("_submit_jobs: once")
async def an_account_has_one_first_job(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, first_job=-20)
    await s.conn.execute("select penstock.create_account('u1')")
    one, two = await s.connect(), await s.connect()
    async with one.transaction():
        await factory.submit(one, account="u1")
        other = Step(two, factory.submit(two, account="u1"))
        await other.waits(s.conn)
    await other
    assert await s.value("select count(*) from penstock.job where first_job") == 1


@catches("_submit_jobs: accepted", replace=("v_new.owners", "v_owner.ids"))
async def a_live_twin_does_not_count_as_a_submit(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, per_hour=2)
    await factory.submit(s.conn, account="u1", dedupe_key="k")
    await factory.submit(s.conn, account="u1", dedupe_key="k")
    assert await s.value("select sum(n) from penstock.recent_submit") == 1


OWN_PRICE = {"price": {"field": "cost", "trusted": True}}


@catches("_read_price: trusted", replace=("v_price - 'field' <> '{\"trusted\": true}'", "false"))
async def a_submit_with_a_price_is_marked_as_trusted(s: Scene) -> None:
    await factory.queue(s.conn)
    call = s.conn.execute("select penstock.declare_kind('q', 'q', $1)", {"price": "cost"})
    await refused(call, "PS422")
    await s.conn.execute("select penstock.declare_kind('q', 'q', $1)", OWN_PRICE)


@catches("_job_fault: own price", replace=("p_own and", "false and"))
async def a_customers_key_writes_no_price(s: Scene) -> None:
    await factory.queue(s.conn)
    await s.conn.execute("select penstock.declare_kind('q', 'q', $1)", OWN_PRICE)
    submit = "select penstock.accept_job('q', $1, p_account => 'u1', p_own => $2)"
    await refused(s.conn.execute(submit, {"cost": 0}, True), "PS403")
    await s.conn.execute(submit, {"cost": 0}, False)


@catches(
    "_job_fault: other account",
    replace=("p_own and", "false and"),
)
async def a_customers_key_names_no_other_account(s: Scene) -> None:
    await factory.queue(s.conn)
    await s.conn.execute("select penstock.declare_kind('q', 'q', $1)", {"account_field": "owner"})
    submit = "select penstock.accept_job('q', $1, p_account => 'u1', p_own => $2)"
    await refused(s.conn.execute(submit, {"owner": "u2"}, True), "PS403")
    await s.conn.execute(submit, {"owner": "u1"}, True)
    await s.conn.execute(submit, {"owner": "u2"}, False)


@catches("_enforce_priority: not locked", replace=("for no key update skip locked", ""))
async def a_change_of_plan_does_not_wait_for_a_locked_job(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.plan(s.conn, priority=50)
    held = await factory.submit(s.conn, account="u1")
    other = await factory.submit(s.conn, account="u1")
    app, operator = await s.connect(), await s.connect()
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", held)
        await s.does_not_wait(
            operator, operator.execute("select penstock.edit_plan('free', '{\"priority\": 10}')")
        )
    assert (await factory.read(s.conn, other))["priority"] == 10


@catches("_hold_plain: in time")
async def an_expired_job_is_not_started(s: Scene) -> None:
    await priced(s)
    worker = await s.worker()
    await factory.submit(s.conn, account="u1", expires_seconds=5)
    await s.clock.advance("10s")
    app = await s.connect()
    async with app.transaction():
        await app.execute(GRANT, "u1", 1)
        assert await factory.claim(s.conn, worker) == []


@catches("_hold_plain: merged in time")
async def an_expired_job_is_not_started_in_a_claim_of_several_kinds(s: Scene) -> None:
    await priced(s)
    await factory.kind(s.conn, "another")
    worker = await s.worker()
    await factory.submit(s.conn, account="u1", expires_seconds=5)
    in_time = await factory.submit(s.conn, "another")
    await s.clock.advance("10s")
    app = await s.connect()
    async with app.transaction():
        await app.execute(GRANT, "u1", 1)
        rows = await factory.claim(s.conn, worker, limit=5)
    assert [row["id"] for row in rows] == [in_time]


@catches("_lock_slots: waits", replace=("for no key update", ""))
async def a_caller_that_waits_gets_a_locked_account(s: Scene) -> None:
    await priced(s)
    worker = await s.worker()
    await factory.submit(s.conn, account="u1")
    [row] = await s.start(worker)
    app, finisher = await s.connect(), await s.connect()
    async with app.transaction():
        await app.execute(GRANT, "u1", 1)
        finish = Step(
            finisher,
            finisher.fetchval(
                "select verdict from penstock.finish_jobs($1, array[$2::uuid], array[1],"
                " array['succeeded'], p_wait => '5 seconds')",
                worker,
                row["id"],
            ),
        )
        await finish.waits(s.conn)
    assert await finish == "done"


@catches("_enforce_priority: not its virtual time")
async def a_lane_of_a_fair_queue_keeps_its_time(s: Scene) -> None:
    await factory.queue(s.conn, order="fair")
    await factory.plan(s.conn, priority=50)
    await factory.submit(s.conn, account="u1")
    head = await s.value("select head from penstock.lane")
    await s.conn.execute("select penstock.edit_plan('free', '{\"priority\": 10}')")
    assert await s.value("select head from penstock.lane") == head


@catches(
    "finish_jobs: units", replace=("exists (select from unnest(p_units) u where u < 0)", "false")
)
async def a_handler_cannot_deliver_negative_units(s: Scene) -> None:
    await priced(s)
    worker = await s.worker()
    await factory.submit(s.conn, account="u1")
    [row] = await s.start(worker)
    await refused(
        s.conn.execute(
            "select verdict from penstock.finish_jobs($1, array[$2::uuid], array[1],"
            " array['succeeded'], p_units => array[-1::bigint])",
            worker,
            row["id"],
        ),
        "PS422",
    )


@catches("resolve_callbacks: units")
async def a_callback_cannot_deliver_negative_units(s: Scene) -> None:
    await priced(s)
    worker = await s.worker()
    await factory.submit(s.conn, account="u1")
    [row] = await s.start(worker)
    token = "a token of some length"  # noqa: S105  # of a test
    await factory.hand_over(s.conn, worker, row, token)
    outcome = await s.value(
        "select outcome from penstock.resolve_callbacks(array[$1::uuid], array[1], array[$2],"
        " array['succeeded'], p_units => array[-1::bigint])",
        row["id"],
        token,
    )
    assert outcome == "invalid"


@catches(
    "report_progress: units",
    replace=("exists (select from unnest(p_units) u where u < 0)", "false"),
)
async def progress_cannot_report_negative_units(s: Scene) -> None:
    worker, row = await s.running(account="u1")
    await refused(
        s.conn.execute(
            "select verdict from penstock.report_progress($1, array[$2::uuid], array[1], null,"
            " null, null, array[-1::bigint])",
            worker,
            row["id"],
        ),
        "PS422",
    )
