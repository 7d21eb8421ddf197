"""The page of workers: alive, silent and lost ones, and what became of the jobs of lost ones."""

import asyncpg

from browser.scene import Scene
from support import factory
from support.clock import Clock
from support.dashboard.visitor import Visitor, text


async def test_without_a_worker_the_page_says_how_to_start_one(operator: Visitor) -> None:
    page = await operator.read("/workers")
    assert "No worker is alive, so no job starts." in page
    assert "penstock worker APP" in page


async def test_a_worker_is_shown_with_its_running_jobs(operator: Visitor, scene: Scene) -> None:
    await scene.started(worker="<i>gpu</i>-1")
    page = await operator.get("/workers")
    assert "1 alive." in text(page)
    assert "<i>gpu</i>-1 Alive 1" in text(page)
    assert "<i>gpu" not in page.text
    assert "jobs?status=running" in page.text


async def test_a_worker_without_heartbeats_is_silent_until_it_is_lost(
    operator: Visitor, conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.worker(conn, "w1", lease="15 seconds")
    await factory.worker(conn, "w2", lease="1 day")
    await clock.advance("1m")
    page = await operator.get("/workers")
    assert "1 alive, 1 silent." in text(page)
    assert page.text.index("w2</td>") < page.text.index("w1</td>"), "those alive come first"
    assert "Lost in the last day" not in text(page)
    await factory.recover(conn)
    page_text = text(await operator.get("/workers"))
    assert "1 alive." in page_text
    assert "Lost in the last day" in page_text
    assert "It had no jobs." in page_text


async def test_a_lost_worker_is_shown_with_what_became_of_its_jobs(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection, clock: Clock
) -> None:
    await scene.queue("line", timeout_seconds=7_200)
    lost = await factory.worker(conn, "gone", lease="15 seconds")
    await scene.many(4)
    assert len(await factory.claim(conn, lost, "line", 4)) == 4
    await clock.advance("1m")
    await factory.recover(conn)
    assert "It had 4 jobs: 4 waiting to start again." in await operator.read("/workers")
    await clock.advance("2h")
    [first, second] = await factory.claim(conn, await scene.worker(), "line", 2)
    await scene.end(first, "succeeded")
    await conn.fetchval("select penstock.cancel_job(id) from penstock.job where status = 'queued'")
    page = await operator.read("/workers")
    assert "It had 4 jobs: 1 succeeded since, 1 running again, " in page
    assert "1 cancelled." in page
    assert second["id"] != first["id"]
    await clock.advance("25h")
    assert "Lost in the last day" not in await operator.read("/workers")


async def test_a_stopped_worker_is_not_shown(operator: Visitor, conn: asyncpg.Connection) -> None:
    worker = await factory.worker(conn, "polite")
    await conn.execute("select penstock.stop_worker($1)", worker)
    assert "polite" not in await operator.read("/workers")


BLOCKED = "select penstock.report_blocked_loop($1, 1, 14, $2, $3, 1, 'call', '/app/marks.py:12')"


async def test_a_blocking_handler_is_named_on_all_pages(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection, clock: Clock
) -> None:
    """D2: with its line, while the loop is blocked and for a day afterwards."""
    await clock.freeze()
    job = (await scene.started("call", worker="gpu-1"))["id"]
    worker = await conn.fetchval("select worker_id from penstock.job where id = $1", job)
    await conn.execute(BLOCKED, worker, False, job)
    page_text = text(await operator.get("/workers"))
    assert "gpu-1 Blocked Its event loop has been blocked for" in page_text
    assert "14 s, and still is call /app/marks.py:12" in page_text
    here = "blocked the event loop of worker gpu-1 for 14 s, at /app/marks.py:12."
    assert f"A handler of kind call has {here}" in text(await operator.get("/"))
    assert f"Attempt 1 has {here}" in text(await operator.get(f"/jobs/{job}"))
    await conn.execute(BLOCKED, worker, True, job)
    assert "gpu-1 Alive" in text(await operator.get("/workers"))
    assert f"A handler of kind call {here}" in text(await operator.get("/"))
    assert f"Attempt 1 {here}" in text(await operator.get(f"/jobs/{job}"))


async def test_a_loop_that_no_job_blocks_is_reported_while_it_is_blocked(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection, clock: Clock
) -> None:
    await clock.freeze()
    worker = await scene.worker("gpu-1")
    for over in (False, True):
        await conn.execute(
            "select penstock.report_blocked_loop($1, 1, 9, $2, p_location => 'marks.py:3')",
            worker,
            over,
        )
        page_text = text(await operator.get("/"))
        assert ("worker gpu-1 has been blocked for 9 s" in page_text) is not over
