"""The page of what is stuck (S11): what, where, since when, why; and cancelling it."""

import asyncpg

from browser.scene import Scene
from support import factory
from support.clock import Clock
from support.dashboard.visitor import Visitor, text


async def test_where_nothing_is_stuck_the_page_says_so_and_what_it_would_mean(
    operator: Visitor, scene: Scene
) -> None:
    await scene.running()
    page = await operator.read("/stuck")
    assert "Nothing is stuck." in page
    assert "Penstock starts it again by itself" in page


async def test_a_silent_job_is_told_with_its_stage_its_worker_and_its_class(
    operator: Visitor, scene: Scene
) -> None:
    """S11"""
    job = await scene.stale(account="<b>u1</b>")
    page = await operator.get("/stuck")
    said = text(page)
    assert f'href="./jobs/{job}"' in page.text
    assert "TIER1" in said
    assert "4 min ago" in said
    assert "Gave no sign of life for too long." in said
    assert "0 of 3" in said
    assert 'data-label="Last worker">w<' in page.text
    assert "<b>u1</b>" in said
    assert "<b>u1" not in page.text
    assert "Nothing is stuck." not in said


async def test_a_recovered_job_tells_how_often_and_when_it_starts_again(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection, clock: Clock
) -> None:
    await scene.queue("slow", timeout_seconds=7_200, stuck_after_seconds=300, recovery=5)
    job = await scene.running("slow", stage="TIER2")
    await clock.advance("6m")
    await factory.recover(conn)
    said = await operator.read("/stuck")
    assert "TIER2" in said
    assert "1 of 5" in said
    await scene.start(job, "slow", worker="gpu-8")
    assert "Nothing is stuck." in await operator.read("/stuck")
    await clock.advance("6m")
    await factory.recover(conn)
    said = await operator.read("/stuck")
    assert "2 of 5, next in" in said
    assert "gpu-8" in said
    assert "Scheduled" in said


async def test_a_job_that_awaits_its_callback_for_too_long_is_told_as_such(
    operator: Visitor, scene: Scene, clock: Clock
) -> None:
    await scene.queue("away", stale_after_seconds=60, timeout_seconds=7_200)
    await scene.awaiting("away")
    await clock.advance("5m")
    assert "No callback came in time." in await operator.read("/stuck")


async def test_a_stuck_job_is_cancelled_after_a_second_look(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    job = await scene.stale()
    asked = await operator.post(f"/stuck/{job}/cancel")
    assert f"Cancel job {str(job)[-8:]}?" in text(asked)
    assert "It is of kind slow" in text(asked)
    assert await conn.fetchval("select cancel_requested_at from penstock.job") is None
    done = await operator.post(f"/stuck/{job}/cancel", {"confirm": "yes"})
    assert "is asked to stop." in text(done)
    assert await conn.fetchval("select cancel_requested_at from penstock.job") is not None
    page = await operator.get("/stuck")
    assert "It is asked to stop." in text(page)
    assert f"stuck/{job}/cancel" not in page.text


async def test_a_recovered_one_that_waits_is_cancelled_at_once(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection, clock: Clock
) -> None:
    await scene.queue("slow", timeout_seconds=7_200, stuck_after_seconds=300)
    job = await scene.running("slow")
    await clock.advance("6m")
    await factory.recover(conn)
    done = await operator.post(f"/stuck/{job}/cancel", {"confirm": "yes"})
    assert "is cancelled." in text(done)
    assert "Nothing is stuck." in text(done)


async def test_one_that_ended_meanwhile_is_left_as_it_is(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    job = await scene.succeeded()
    done = await operator.post(f"/stuck/{job}/cancel", {"confirm": "yes"})
    assert "has ended by itself." in text(done)
    assert await factory.status(conn, job) == "succeeded"


async def test_a_job_that_is_not_there_or_a_form_without_token_changes_nothing(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    job = await scene.stale()
    answer = await operator.post("/stuck/0199f0a4-6c1e-7d3a-9b52-2f6d8a7c1e05/cancel")
    assert answer.status_code == 404
    answer = await operator.send(f"/stuck/{job}/cancel", {"confirm": "yes"})
    assert answer.status_code == 403
    assert await conn.fetchval("select cancel_requested_at from penstock.job") is None


async def test_of_very_many_the_oldest_hundred_are_shown(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection, clock: Clock
) -> None:
    await scene.queue("slow", stale_after_seconds=60, timeout_seconds=7_200)
    await scene.many(101, "slow")
    await factory.claim(conn, await scene.worker(), "slow", 101)
    await clock.advance("5m")
    page = await operator.get("/stuck")
    assert page.text.count('<tr id="job-') == 100
    assert "there are more" in text(page)
