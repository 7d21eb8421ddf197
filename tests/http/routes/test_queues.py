"""Queues over HTTP: backends read them, operators change them, with lasting effect."""

from typing import Any

import pytest

from support.http.site import Site, problem


@pytest.fixture(autouse=True)
def _queues(site: Site) -> None:
    model = site.penstock.queue("model", concurrency=2, timeout="90s")
    site.penstock.queue("other")

    @site.penstock.job(queue=model)
    async def mark(n: int) -> int:
        return n


async def test_queues_are_shown_with_limits_and_waiting_jobs(site: Site) -> None:
    await site.app_client.post("/v1/jobs", json={"kind": "mark", "payload": {"n": 1}})
    page = (await site.app_client.get("/v1/queues")).json()
    assert [one["name"] for one in page["items"]] == ["model", "other"]
    assert page["next_cursor"] is None
    one = (await site.admin.get("/v1/queues/model")).json()
    assert one == page["items"][0]
    assert (one["concurrency"], one["timeout_seconds"], one["queued"]) == (2, 90, 1)
    problem(await site.admin.get("/v1/queues/nope"), 404, "unknown_queue")
    problem(await site.admin.get("/v1/queues/a%00b"), 422, "invalid_queue")


async def test_a_change_of_limits_takes_effect_at_once_and_is_shown(site: Site) -> None:
    answer = await site.admin.patch(
        "/v1/queues/model", json={"concurrency": 7, "rate": "10/s", "timeout_seconds": 30}
    )
    assert answer.status_code == 200
    changed = answer.json()
    assert (changed["concurrency"], changed["rate"], changed["timeout_seconds"]) == (7, "10/s", 30)
    assert changed["overrides"] == {"concurrency": 7, "rate": "10/s", "timeout_seconds": 30}
    back = (await site.admin.patch("/v1/queues/model", json={"rate": None})).json()
    assert (back["rate"], back["concurrency"]) == (None, 7)
    reset = (await site.admin.post("/v1/queues/model/reset")).json()
    assert (reset["concurrency"], reset["overrides"]) == (2, {})


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"speed": 7}, "unknown_option", "speed"),
        ({"name": "x"}, "unknown_option", "name"),
        ({"concurrency": 0}, "invalid_option", "concurrency"),
        ({"concurrency": "2"}, "invalid_option", "concurrency"),
        ({"rate": "fast"}, "invalid_option", "rate"),
        ({"timeout_seconds": -1}, "invalid_option", "timeout_seconds"),
        ({"rate": "a\0b"}, "invalid_option", "options"),
        ([1], "invalid_option", None),
    ],
)
async def test_the_wrong_option_is_named(
    site: Site, body: Any, code: str, field: str | None
) -> None:
    refusal = problem(await site.admin.patch("/v1/queues/model", json=body), 422, code)
    assert refusal.get("field") == field


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(site: Site) -> None:
    paused = await site.admin.post("/v1/queues/model/pause", json={"reason": "the bill"})
    assert (paused.json()["paused"], paused.json()["paused_reason"]) == (True, "the bill")
    job = await site.app_client.post("/v1/jobs", json={"kind": "mark", "payload": {"n": 1}})
    assert await site.work() == 0
    shown = (await site.app_client.get(f"/v1/jobs/{job.json()['id']}")).json()
    assert (shown["status"], shown["waiting_for"]) == ("queued", "paused")
    resumed = await site.admin.post("/v1/queues/model/resume")
    assert resumed.json()["paused"] is False
    assert await site.work() == 1
    # Without a body, and twice: nothing changes.
    for _ in range(2):
        assert (await site.admin.post("/v1/queues/other/pause")).json()["paused"]
    long = await site.admin.post("/v1/queues/other/pause", json={"reason": "x" * 501})
    assert problem(long, 422, "invalid_request")["field"] == "reason"


async def test_only_operators_change_queues(site: Site) -> None:
    own = await site.account_client("u1")
    drives = site.client(await site.make_key("process"))
    for client in (site.app_client, own, drives):
        for verb in ("pause", "resume", "reset"):
            problem(await client.post(f"/v1/queues/model/{verb}"), 403, "not_allowed")
        problem(await client.patch("/v1/queues/model", json={}), 403, "not_allowed")
    for client in (own, drives):
        problem(await client.get("/v1/queues"), 403, "not_allowed")
        problem(await client.get("/v1/queues/model"), 403, "not_allowed")
    problem(await site.anonymous.get("/v1/queues"), 401, "unauthorized")
    for verb in ("pause", "resume", "reset"):
        problem(await site.admin.post(f"/v1/queues/nope/{verb}"), 404, "unknown_queue")
    problem(await site.admin.patch("/v1/queues/nope", json={}), 404, "unknown_queue")
