"""Guards of progress from outside functions, and of webhooks about finished jobs."""

from typing import Any
from uuid import UUID

from mutation.scene import Scene, catches
from support import factory
from support.factory import Row

THEIRS = "https://caller.example.com/webhook"


async def note(s: Scene, job: UUID, attempt: int, token: str) -> str:
    answer: str = await factory.call_back(s.conn, job, attempt, token, "progress")
    return answer


@catches("report_progress: token", replace=("j.callback_hash = t.callback", "true"))
async def progress_with_a_wrong_token_is_invalid(s: Scene) -> None:
    _, row = await s.awaiting()
    assert await note(s, row["id"], 1, "a sign of a stranger") == "invalid"


async def finished_with_webhooks(s: Scene, n: int = 1, **fields: Any) -> None:
    """Finish jobs, each with a webhook to its caller."""
    await factory.queue(s.conn)
    worker = await s.worker()
    for _ in range(n):
        await factory.submit(s.conn, webhook_url=THEIRS, **fields)
        await factory.finish(s.conn, worker, await s.start(worker))


async def claim(s: Scene) -> list[Row]:
    rows: list[Row] = await s.conn.fetch(
        "select * from penstock.claim_deliveries(10, '30 seconds')"
    )
    return rows


async def report(s: Scene, row: Row, *, taken: bool) -> str:
    status: str = await s.value(
        "select penstock.report_delivery($1, $2, $3, 500)", row["id"], row["try"], taken
    )
    return status


@catches("claim_deliveries: due")
async def a_message_that_is_not_due_is_not_sent(s: Scene) -> None:
    await finished_with_webhooks(s, 3)
    tried = await claim(s)
    assert len(tried) == 2
    for row in tried:
        await report(s, row, taken=False)
    assert [row["try"] for row in await claim(s)] == [1]


@catches("report_delivery: its try")
async def a_late_report_of_an_earlier_delivery_does_not_count(s: Scene) -> None:
    await finished_with_webhooks(s)
    [first] = await claim(s)
    await s.clock.advance("31s")
    [second] = await claim(s)
    await report(s, first, taken=False)
    assert await s.value("select sending_until is not null from penstock.delivery")
    assert await report(s, second, taken=True) == "delivered"


@catches("report_delivery: not taken")
async def a_delivered_message_stays_delivered(s: Scene) -> None:
    await finished_with_webhooks(s)
    [row] = await claim(s)
    assert await report(s, row, taken=True) == "delivered"
    assert await report(s, row, taken=False) == "delivered"
    assert await s.value("select last_error is null and next_at is null from penstock.delivery")


@catches("list_deliveries: own", "list_deliveries: not the operator's", "replay_delivery: own")
async def an_account_sees_its_own_messages(s: Scene) -> None:
    await factory.queue(s.conn)
    own = {"webhook": "https://app.example.org/hooks"}
    await s.conn.execute("select penstock.declare_kind('q', 'q', $1)", own)
    worker = await s.worker()
    for account in ("u1", "u2"):
        await factory.submit(s.conn, account=account, webhook_url=THEIRS)
        await factory.finish(s.conn, worker, await s.start(worker))
    rows = await s.conn.fetch("select penstock.list_deliveries('u1') as one")
    assert [row["one"]["account"] for row in rows] == ["u1"]
    for row in await s.conn.fetch("select id from penstock.delivery"):
        if str(row["id"]) != rows[0]["one"]["id"]:
            with factory.refused(404, "unknown_webhook", "id"):
                await s.conn.execute("select penstock.replay_delivery($1, 'u1')", row["id"])
