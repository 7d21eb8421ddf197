"""The doctor reports what stands still, since when, and what to do; and nothing that moves."""

from types import SimpleNamespace

import asyncpg
import pytest

from penstock.base.settings import Settings
from penstock.engine.doctor import liveness
from penstock.engine.doctor.doctor import examine
from penstock.engine.doctor.finding import Finding
from support import factory
from support.clock import Clock
from support.liveness import RULES, accept, passes, standing


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "AGAIN_SECONDS", 0.05)


async def found(dsn: str) -> list[Finding]:
    findings = [finding async for finding in examine(Settings(dsn=dsn))]
    return [finding for finding in findings if finding.name == "liveness"]


async def test_a_job_that_stands_still_is_named(
    database: str, conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    worker = await standing(conn)
    job = await factory.submit(conn)
    assert [finding.level for finding in await found(database)] == ["ok"]
    await accept(conn, clock, worker, 12)
    [finding] = await found(database)
    assert finding.level == "bad"
    assert finding.message.startswith(
        f'the rule "{RULES["start"]}" does not hold for {job} since 1'
    )
    assert "(queue q, kind q: a worker has a free slot" in finding.message
    assert "blocks the event loop" in str(finding.advice)


async def test_a_job_that_moves_between_two_checks_is_not_reported(
    database: str, conn: asyncpg.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await factory.queue(conn)
    worker = await standing(conn)
    await factory.submit(conn)
    await accept(conn, clock, worker, 12)

    async def starts(_: float) -> None:
        await factory.claim(conn, worker)

    monkeypatch.setattr(liveness, "asyncio", SimpleNamespace(sleep=starts))
    assert [finding.level for finding in await found(database)] == ["ok"]


async def test_only_the_first_of_many_are_listed(
    database: str, conn: asyncpg.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "MOST_SHOWN", 2)
    await factory.queue(conn)
    await standing(conn)
    worker = await factory.worker(conn, "gone")
    await factory.submit_rows(conn, [{"kind": "q"}] * 4)
    await factory.claim(conn, worker, limit=4)
    await conn.execute("select penstock.stop_worker($1)", worker)
    await passes(conn, clock, 20)
    *first, last = await found(database)
    assert len(first) == 2
    assert {finding.advice for finding in first} == {liveness._RESTART}
    assert last.message == "and 2 more findings like this"


async def test_a_check_that_takes_too_long_is_reported(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "ANSWER_SECONDS", 0.001)
    [finding] = await found(database)
    assert finding.level == "warning"
    assert "check --liveness" in str(finding.advice)


async def test_every_rule_is_one_that_the_database_knows() -> None:
    assert set(liveness.ADVICE) < set(RULES.values())
