"""The component and the real thing: API, worker, tokens, from a page of another origin."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from browser.app_site import AppSite, serving
from browser.live import Live
from browser.scene import Scene
from browser.watched import Windows, in_one_loop
from penstock import Job

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>An app</title>
<link rel="icon" href="data:,"><script type="module" src="{base}/static/penstock.js"></script>
<main><h1>An app</h1>{body}</main></html>"""


@pytest.fixture
def origin() -> AppSite:
    return AppSite()


@pytest.fixture
def origins(origin: AppSite) -> str:
    return origin.base


@in_one_loop
async def site(origin: AppSite, windows: Windows) -> AsyncIterator[AppSite]:
    async with serving(origin):
        yield origin
        # Before the servers: what ends with them is no fault of a page.
        await windows.close()


def client(live: Live) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=live.base, headers={"Authorization": f"Bearer {live.secret}"}, timeout=30
    )


async def token(live: Live, **fields: Any) -> str:
    async with client(live) as api:
        answer = await api.post("/v1/tokens", json=fields)
        assert answer.status_code == 201, answer.text
        found: str = answer.json()["token"]
        return found


async def put(page: Page, site: AppSite, live: Live, body: str) -> None:
    site.pages["one"] = PAGE.format(base=live.base, body=body)
    await page.goto(f"{site.base}/pages/one")


def component(live: Live, job: object, token: str, more: str = "") -> str:
    return f'<penstock-job src="{live.base}/v1/jobs/{job}" token="{token}"{more}></penstock-job>'


def part(page: Page, name: str) -> Any:
    return page.locator(f"penstock-job [part={name}]")


async def test_a_job_from_the_queue_to_its_result(site: AppSite, live: Live, page: Page) -> None:
    """G12, G16: stages, partial results and tokens as they come; each waits until it was seen."""
    seen = asyncio.Event()
    line = live.penstock.queue("line", concurrency=1)

    @live.penstock.job(queue=line, account="who", price=4)
    async def write(who: str, job: Job) -> str:  # noqa: ARG001  # the account
        async with job.stage("draft", label="Writing a draft"):
            await job.progress(1, 4, partial={"title": "A tale"})
            await job.emit("Once ")
            await job.emit("upon a time")
            await seen.wait()
        await job.progress(3, 4)
        await job.charge(units=3)
        return "Once upon a time."

    await live.declare()
    async with client(live) as api:
        await api.post("/v1/accounts", json={"id": "u1"})
        await api.post("/v1/accounts/u1/credits", json={"amount": 10, "reason": "a gift"})
        fields = {"kind": "write", "payload": {"who": "u1"}}
        job = (await api.post("/v1/jobs", json=fields)).json()
    await put(page, site, live, component(live, job["id"], await token(live, job=job["id"])))
    await expect(part(page, "position")).to_have_text("#1 in queue")
    work = asyncio.create_task(live.work())
    await expect(part(page, "stage")).to_have_text("Writing a draft")
    await expect(part(page, "count")).to_have_text("1 of 4")
    await expect(part(page, "partial")).to_have_text("titleA tale")
    await expect(part(page, "tokens")).to_have_text("Once upon a time")
    seen.set()
    await expect(part(page, "status")).to_have_text("Done")
    await expect(part(page, "result")).to_have_text("Once upon a time.")
    await expect(part(page, "credits")).to_have_text("3 of 4 delivered, 1 credit refunded.")
    await work


async def test_cancel_needs_a_token_that_allows_it(
    site: AppSite, live: Live, page: Page, scene: Scene, allowed_errors: list[str]
) -> None:
    allowed_errors.append("403")
    job = str(await scene.queued())
    await put(page, site, live, component(live, job, await token(live, job=job)))
    await part(page, "cancel").click()
    await expect(part(page, "refusal")).to_have_text("You may not cancel this.")
    assert (await scene.read(job))["status"] == "queued"  # type: ignore[arg-type]
    good = await token(live, job=job, allow=["read", "cancel"])
    # A new token is a new start, also for the button.
    await page.locator("penstock-job").evaluate("(one, t) => one.setAttribute('token', t)", good)
    await part(page, "cancel").click()
    await expect(part(page, "status")).to_have_text("Cancelled")


async def test_a_server_that_restarts_is_found_again(
    site: AppSite, live: Live, page: Page, scene: Scene, allowed_errors: list[str]
) -> None:
    allowed_errors.append("ERR_")
    row = await scene.started()
    job = str(row["id"])
    await put(page, site, live, component(live, job, await token(live, job=job), ' poll="250"'))
    await expect(part(page, "status")).to_have_text("Running")
    await live.stop()
    await expect(part(page, "connection")).to_contain_text("This is the last known state")
    await expect(part(page, "status")).to_have_text("Running")
    await scene.report(row, stage="S", label="After the restart")
    await live.start()
    await expect(part(page, "stage")).to_have_text("After the restart", timeout=20_000)
    await expect(part(page, "connection")).to_be_hidden()


async def test_a_token_runs_out_and_is_renewed(
    site: AppSite, live: Live, page: Page, scene: Scene, allowed_errors: list[str]
) -> None:
    allowed_errors.append("401")
    row = await scene.started()
    job = str(row["id"])
    short = await token(live, job=job, ttl_seconds=2)
    await put(page, site, live, component(live, job, short))
    next_token = await token(live, job=job)
    await page.locator("penstock-job").evaluate(
        "(one, t) => { one.renew = async () => { window.renewed = true; return t; } }", next_token
    )
    await page.wait_for_function("window.renewed", timeout=30_000)
    await scene.report(row, stage="S", label="With another token")
    await expect(part(page, "stage")).to_have_text("With another token")


async def test_the_jobs_of_a_topic_share_its_stream(
    site: AppSite, live: Live, page: Page, scene: Scene
) -> None:
    jobs = await scene.many(8, topic="class/7 b")
    key = await token(live, topic="class/7 b")
    stream = f' stream="{live.base}/v1/topics/class%2F7%20b"'
    streams: list[str] = []
    page.on("request", lambda one: streams.append(one.url) if "/events" in one.url else None)
    await put(page, site, live, "".join(component(live, job, key, stream) for job in jobs))
    for n in range(8):
        await expect(part(page, "position").nth(n)).to_have_text(f"#{n + 1} in queue")
    await scene.conn.fetchval("select penstock.cancel_job($1)", jobs[0])
    await expect(part(page, "status").nth(0)).to_have_text("Cancelled")
    await expect(part(page, "position").nth(1)).to_have_text("#1 in queue")
    assert len(streams) == 1


async def test_what_is_done_before_anybody_looked_is_shown(
    site: AppSite, live: Live, page: Page, scene: Scene
) -> None:
    job = str(await scene.succeeded(result={"score": 7}, topic="t"))
    await scene.clock.advance("1h")
    key = await token(live, topic="t")
    await put(page, site, live, component(live, job, key, f' stream="{live.base}/v1/topics/t"'))
    await expect(part(page, "result")).to_have_text("score7")


@pytest.mark.parametrize("origins", ["https://elsewhere.example"])
async def test_a_page_of_an_origin_that_was_not_named_learns_nothing(
    site: AppSite, live: Live, page: Page, scene: Scene, allowed_errors: list[str]
) -> None:
    allowed_errors.append("CORS|ERR_FAILED")
    job = str(await scene.succeeded(result="a secret"))
    key = await token(live, job=job)
    await put(page, site, live, component(live, job, key))
    await expect(part(page, "connection")).to_contain_text("connection was lost")
    await expect(page.locator("penstock-job")).not_to_contain_text("a secret")


async def test_a_dead_token_says_what_to_do(
    site: AppSite, live: Live, page: Page, scene: Scene, allowed_errors: list[str]
) -> None:
    allowed_errors.append("401")
    job = str(await scene.queued())
    await put(page, site, live, component(live, job, "pt_nothing.at-all"))
    said = "Your access has expired. Please reload the page."
    await expect(part(page, "status")).to_have_text(said)
