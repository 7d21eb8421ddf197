"""`Prefer: wait=N`: the answer comes when the job has finished."""

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest

from penstock.worker.worker import Options, Worker
from support.factory import claim, finish, worker
from support.http.site import Site
from support.waiting import eventually


@pytest.fixture
def waiting(site: Site) -> Site:
    site.penstock.queue("q")

    @site.penstock.job(queue="q", account="who", price=0)
    async def greet(name: str, who: str | None = None) -> str:  # noqa: ARG001  # the account
        return f"Hello {name}"

    return site


async def post(site: Site, prefer: str | None, **fields: Any) -> httpx.Response:
    headers = {} if prefer is None else {"Prefer": prefer}
    body = {"kind": "greet", "payload": {"name": "Ada"}} | fields
    return await site.app_client.post("/v1/jobs", json=body, headers=headers)


async def test_a_submit_may_wait_for_the_result(waiting: Site) -> None:
    await waiting.penstock.engine()
    work = Worker(waiting.dsn, waiting.penstock.handlers(), Options(name="w"))
    runs = asyncio.create_task(work.run())
    response = await post(waiting, "respond-async, wait=20", account="u1")
    assert response.status_code == 201
    assert response.headers["preference-applied"] == "wait=20"
    answer = response.json()
    assert (answer["status"], answer["result"]) == ("succeeded", "Hello Ada")
    assert answer["balance"] == 0, "what a submit says beside the job stays"
    work.stop()
    await runs


async def test_the_wait_ends_before_the_job_has_finished(waiting: Site) -> None:
    response = await post(waiting, "wait=1")
    assert response.json()["status"] == "queued"
    assert response.headers["preference-applied"] == "wait=1"
    job = response.json()["id"]
    response = await waiting.app_client.get(f"/v1/jobs/{job}", headers={"Prefer": "wait=0"})
    assert (response.json()["status"], response.headers["preference-applied"]) == (
        "queued",
        "wait=0",
    )


async def test_a_read_may_wait_until_the_job_has_finished(
    waiting: Site, conn: asyncpg.Connection
) -> None:
    job = (await post(waiting, None)).json()["id"]
    number = await worker(conn)
    read = asyncio.create_task(
        waiting.app_client.get(f"/v1/jobs/{job}", headers={"Prefer": "wait=900"})
    )

    async def watched() -> bool:
        return bool(waiting.api.state.backend.live.count() == 1)

    await eventually(watched, "it waits")
    await finish(conn, number, await claim(conn, number), result={"told": True})
    response = await read
    assert response.json()["result"] == {"told": True}
    assert response.headers["preference-applied"] == "wait=30", "and no longer than that"
    assert waiting.api.state.backend.live.count() == 0


async def test_a_finished_job_or_a_call_without_prefer_is_answered_at_once(
    waiting: Site, conn: asyncpg.Connection
) -> None:
    job = (await post(waiting, None)).json()["id"]
    number = await worker(conn)
    await finish(conn, number, await claim(conn, number))
    response = await waiting.app_client.get(f"/v1/jobs/{job}", headers={"Prefer": "wait=30"})
    assert response.json()["status"] == "succeeded"
    for prefer in ("", "wait=soon", "await=3", "handling=lenient"):
        response = await waiting.app_client.get(f"/v1/jobs/{job}", headers={"Prefer": prefer})
        assert "preference-applied" not in response.headers
