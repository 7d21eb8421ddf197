"""The page of stuck jobs (S11): stage, time, cause; and cancelling them."""

import asyncpg

from browser.scene import Scene
from support import factory
from support.clock import Clock
from support.dashboard.visitor import Visitor, text


async def test_without_stuck_jobs_the_page_explains_what_stuck_means(
    operator: Visitor, scene: Scene
) -> None:
    await scene.running()
    page = await operator.read("/stuck")
    assert "No job is stuck." in page
    assert "Penstock starts it again automatically" in page


async def test_a_stuck_job_is_shown_with_its_stage_worker_and_class(
    operator: Visitor, scene: Scene
) -> None:
    """S11"""
    job = await scene.stale(account="<b>u1</b>")
    page = await operator.get("/stuck")
    page_text = text(page)
    assert f'href="./jobs/{job}"' in page.text
    assert "TIER1" in page_text
    assert "4 min ago" in page_text
    assert "Reported no progress for too long." in page_text
    assert "0 of 3" in page_text
    assert 'data-label="Last worker">w<' in page.text
    assert "<b>u1</b>" in page_text
    assert "<b>u1" not in page.text
    assert "No job is stuck." not in page_text


async def test_a_recovered_job_shows_its_recoveries_and_next_attempt(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection, clock: Clock
) -> None:
    await scene.queue("slow", timeout_seconds=7_200, stuck_after_seconds=300, recovery=5)
    job = await scene.running("slow", stage="TIER2")
    await clock.advance("6m")
    await factory.recover(conn)
    page_text = await operator.read("/stuck")
    assert "TIER2" in page_text
    assert "1 of 5" in page_text
    await scene.start(job, "slow", worker="gpu-8")
    assert "No job is stuck." in await operator.read("/stuck")
    await clock.advance("6m")
    await factory.recover(conn)
    page_text = await operator.read("/stuck")
    assert "2 of 5, next in" in page_text
    assert "gpu-8" in page_text
    assert "Scheduled" in page_text


async def test_a_job_without_its_callback_is_shown_as_stuck(
    operator: Visitor, scene: Scene, clock: Clock
) -> None:
    await scene.queue("outside", stale_after_seconds=60, timeout_seconds=7_200)
    await scene.awaiting("outside")
    await clock.advance("5m")
    assert "No callback came in time." in await operator.read("/stuck")


async def test_a_stuck_job_is_cancelled_after_confirmation(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    job = await scene.stale()
    asked = await operator.post(f"/stuck/{job}/cancel")
    assert f"Cancel job {str(job)[-8:]}?" in text(asked)
    assert "It is of kind slow" in text(asked)
    assert await conn.fetchval("select cancel_requested_at from penstock.job") is None
    done = await operator.post(f"/stuck/{job}/cancel", {"confirm": "yes"})
    assert "was asked to stop." in text(done)
    assert await conn.fetchval("select cancel_requested_at from penstock.job") is not None
    page = await operator.get("/stuck")
    assert "Stop requested." in text(page)
    assert f"stuck/{job}/cancel" not in page.text


async def test_a_waiting_recovered_job_is_cancelled_at_once(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection, clock: Clock
) -> None:
    await scene.queue("slow", timeout_seconds=7_200, stuck_after_seconds=300)
    job = await scene.running("slow")
    await clock.advance("6m")
    await factory.recover(conn)
    done = await operator.post(f"/stuck/{job}/cancel", {"confirm": "yes"})
    assert "was cancelled." in text(done)
    assert "No job is stuck." in text(done)


async def test_a_job_that_finished_meanwhile_is_not_changed(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    job = await scene.succeeded()
    done = await operator.post(f"/stuck/{job}/cancel", {"confirm": "yes"})
    assert "has already finished." in text(done)
    assert await factory.status(conn, job) == "succeeded"


async def test_an_unknown_job_or_a_form_without_token_changes_nothing(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    job = await scene.stale()
    answer = await operator.post("/stuck/0199f0a4-6c1e-7d3a-9b52-2f6d8a7c1e05/cancel")
    assert answer.status_code == 404
    answer = await operator.send(f"/stuck/{job}/cancel", {"confirm": "yes"})
    assert answer.status_code == 403
    assert await conn.fetchval("select cancel_requested_at from penstock.job") is None


async def test_only_the_hundred_oldest_are_shown(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection, clock: Clock
) -> None:
    await scene.queue("slow", stale_after_seconds=60, timeout_seconds=7_200)
    await scene.many(101, "slow")
    await factory.claim(conn, await scene.worker(), "slow", 101)
    await clock.advance("5m")
    page = await operator.get("/stuck")
    assert page.text.count('<tr id="job-') == 100
    assert "there are more" in text(page)
