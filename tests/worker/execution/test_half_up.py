"""Real workers and a model that refuses half of its calls, all of them, or hangs for one account.

The decisions of the circuit are tested in simulated time, in tests/sql/circuit/.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock import Penstock
from penstock.client.config.toml import load
from penstock.models.simulated.model import Model, simulated
from support import factory
from support.factory import submit_rows
from support.worker.crew import working

pytestmark = [pytest.mark.faults, pytest.mark.alone, pytest.mark.timeout(300)]

SETTINGS = """
[queues.model]
concurrency = {concurrency}
retry = {{ attempts = 3, delay = "5s" }}
[jobs.model]
queue = "model"
handler = "ollama"
url = "{url}"
model = "llama3"
prompt = "Give feedback on: {{answer}}"
fields = {{ answer = "str" }}
first_token_timeout = "10s"
stall_timeout = "10s"
"""


def app_of(model: Model, folder: Any, concurrency: int) -> Penstock:
    path = folder / "penstock.toml"
    path.write_text(SETTINGS.format(url=model.url, concurrency=concurrency))
    return load(path)


async def submitted(
    conn: asyncpg.Connection, jobs: int, accounts: Sequence[str | None] = (None,)
) -> list[UUID]:
    return await submit_rows(
        conn,
        [
            {
                "kind": "model",
                "account": accounts[n % len(accounts)],
                "payload": {"answer": f"I like {accounts[n % len(accounts)]}."},
            }
            for n in range(jobs)
        ],
    )


async def finished(conn: asyncpg.Connection, status: str = "succeeded") -> int:
    found: int = await conn.fetchval(
        "select count(*) from penstock.finished where status::text = $1", status
    )
    return found


async def watched(conn: asyncpg.Connection, seconds: float, enough: int) -> float:
    """How long it took until so many succeeded, at most these seconds."""
    began = time.monotonic()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while await finished(conn) < enough:  # noqa: ASYNC110  # a database has no event
                await asyncio.sleep(0.1)
    return time.monotonic() - began


async def test_503_for_half_of_the_calls(
    database: str, conn: asyncpg.Connection, tmp_path: Any, record_property: Any
) -> None:
    """D4: at least 24 of 60 jobs in 90 s at concurrency 8, none failed."""
    async with simulated(slots=8, latency=1, tokens=5) as model:
        async with working(database, app_of(model, tmp_path, 8)):
            model.order("status", code=503, chance=0.5)
            await submitted(conn, 60)
            took = await watched(conn, 90, 60)
        served, calls = await finished(conn), len(model.calls)
    print(f"half up: {served} of 60 jobs in {took:.0f} s, {calls} calls")
    record_property("half_up", {"served": served, "seconds": took, "calls": calls})
    assert served >= 24
    assert await finished(conn, "failed") == 0


async def test_503_for_all_calls(
    database: str, conn: asyncpg.Connection, tmp_path: Any, record_property: Any
) -> None:
    """D4: at most 40 calls in 60 s."""
    async with simulated(slots=8, latency=1, tokens=5) as model:
        async with working(database, app_of(model, tmp_path, 8)):
            model.order("status", code=503)
            await submitted(conn, 60)
            await watched(conn, 60, 1)
        calls = len(model.calls)
    print(f"down: {calls} calls in 60 s")
    record_property("down", {"calls": calls})
    assert calls <= 40
    assert await finished(conn, "failed") == 0


async def test_one_account_of_twenty_whose_jobs_all_hang(
    database: str, conn: asyncpg.Connection, tmp_path: Any, record_property: Any
) -> None:
    """D5: each account has one job at a time; the other 19 lose less than 10 %."""
    await factory.plan(conn, concurrency=1)
    accounts = [f"account {n}" for n in range(20)]
    others = (
        "select count(*) from penstock.finished f join penstock.account a on a.id = f.account_id"
        " where a.name <> 'account 7' and f.status = 'succeeded'"
    )
    rates = []
    async with (
        simulated(slots=30, latency=1, tokens=5) as model,
        working(database, app_of(model, tmp_path, 20)),
    ):
        await submitted(conn, 20 * 90, accounts)
        for hangs in (False, True):
            if hangs:
                model.order("hang", contains="I like account 7.")
                await watched(conn, 2, 10_000)
            before, began = await conn.fetchval(others), time.monotonic()
            await watched(conn, 30, 10_000)
            rates.append((await conn.fetchval(others) - before) / (time.monotonic() - began))
    print(f"19 accounts: {rates[0]:.1f} jobs/s, {rates[1]:.1f} beside one that hangs")
    record_property("bad_account", {"well": rates[0], "beside_one_that_hangs": rates[1]})
    assert rates[1] > 0.9 * rates[0]
