"""Live streams: a snapshot, each change, chunks without gap or repetition, and an end."""

import asyncio
from typing import Any

import asyncpg
import pytest

from penstock import Job
from support.factory import claim, finish, submit_rows, worker
from support.http.listening import listening
from support.http.site import Site, problem
from support.waiting import eventually


@pytest.fixture
def marking(site: Site) -> Site:
    """A queue `q` with one slot and the kind `mark`."""
    site.penstock.queue("q", concurrency=1)

    @site.penstock.job(queue="q", topic="assignment")
    async def mark(assignment: str, job: Job) -> dict[str, Any]:  # noqa: ARG001  # the job's topic
        await job.progress(1, 2)
        for word in ("Well ", "done"):
            await job.emit(word)
        return {"score": 7}

    return site


async def submit(site: Site, **fields: Any) -> str:
    body = {"kind": "mark", "payload": {"assignment": "a1"}} | fields
    response = await site.app_client.post("/v1/jobs", json=body)
    assert response.status_code == 201, response.text
    found: str = response.json()["id"]
    return found


async def test_a_watcher_of_a_topic_sees_its_jobs_start_and_finish(marking: Site) -> None:
    """M8: a finished job sends a live event to all watchers of its topic."""
    first = await submit(marking)
    path = "/v1/topics/a1/events"
    async with (
        listening(marking.app_client, path) as one,
        listening(marking.admin, path) as other,
        listening(marking.admin, "/v1/topics/a2/events") as elsewhere,
    ):
        assert one.response.headers["content-type"].startswith("text/event-stream")
        assert one.response.headers["x-accel-buffering"] == "no"
        for listener in (one, other):
            assert (await listener.next()).data["id"] == first
        second = await submit(marking)
        for listener in (one, other):
            await listener.status("queued", second)
        await marking.work()
        for listener in (one, other):
            event = await listener.status("succeeded", second)
            assert event.data["result"] == {"score": 7}
        assert one.retry == 2000
        assert not elsewhere.had
        assert not one.closed.is_set()


async def test_the_stream_of_a_job_ends_when_it_has_finished(marking: Site) -> None:
    """E8, E15: a browser listens and stops at the final state."""
    job = await submit(marking)
    async with listening(marking.app_client, f"/v1/jobs/{job}/events") as listener:
        snapshot = await listener.next()
        assert (snapshot.name, snapshot.data["status"]) == ("job", "queued")
        assert snapshot.data["position"] == 1
        assert snapshot.id == f"{snapshot.data['version']}.0.0"
        await marking.work()
        events = await listener.over()
    assert events[-1].data["status"] == "succeeded"
    chunks = [event.data for event in events if event.name == "chunk"]
    assert "".join(chunk["data"] for chunk in chunks) == "Well done"
    assert all(chunk["attempt"] == 1 for chunk in chunks)
    versions = [event.data["version"] for event in events if event.name == "job"]
    assert versions == sorted(versions)


async def test_the_stream_of_a_finished_job_replays_and_ends(marking: Site) -> None:
    job = await submit(marking)
    await marking.work()
    async with listening(marking.app_client, f"/v1/jobs/{job}/events") as listener:
        events = await listener.over()
    assert [event.name for event in events[-1:]] == ["job"]
    assert "".join(event.data["data"] for event in events if event.name == "chunk") == "Well done"
    async with listening(
        marking.app_client, f"/v1/jobs/{job}/events", last=events[-1].id
    ) as listener:
        again = await listener.over()
    assert [event.name for event in again] == ["job"]


async def test_changes_by_plain_sql_are_sent(marking: Site, conn: asyncpg.Connection) -> None:
    """Without a notification the poll once a second finds it."""
    job = await submit(marking)
    async with (
        listening(marking.app_client, f"/v1/jobs/{job}/events") as listener,
        listening(marking.app_client, "/v1/topics/a1/events") as topic,
    ):
        await listener.next()
        await conn.execute("select penstock.cancel_job($1)", job)
        await listener.status("cancelled", seconds=3)
        await listener.over()
        await topic.status("cancelled", job)


async def test_a_job_that_starts_and_finishes_between_two_polls_is_sent(
    marking: Site, conn: asyncpg.Connection
) -> None:
    await marking.penstock.engine()
    number = await worker(conn)
    async with listening(marking.admin, "/v1/topics/a1/events") as listener:
        await eventually(lambda: _is_polled(marking), "it was polled")
        async with conn.transaction():
            [job] = await submit_rows(conn, [{"kind": "mark", "payload": {"assignment": "a1"}}])
            await finish(conn, number, await claim(conn, number))
        event = await listener.status("succeeded")
        assert event.data["id"] == str(job)
        assert len(listener.had) == 1


async def _is_polled(site: Site) -> bool:
    feeds = site.api.state.backend.live._scopes.values()
    return all(feed.fingerprint is not None and feed.snapshot_wanted_at is None for feed in feeds)


async def test_a_snapshot_has_jobs_that_finished_in_the_last_five_minutes(marking: Site) -> None:
    old = await submit(marking)
    await marking.work()
    await marking.clock.advance("6m")
    recent = await submit(marking)
    await marking.work()
    live = await submit(marking)
    async with listening(marking.app_client, "/v1/topics/a1/events") as listener:
        snapshot = [await listener.next() for _ in range(2)]
        assert [event.data["id"] for event in snapshot] == [recent, live]
        last = await submit(marking)
        await listener.status("queued", last)
        assert old not in [event.data["id"] for event in listener.had]


async def test_too_many_jobs_give_no_snapshot_but_changes(
    marking: Site, conn: asyncpg.Connection
) -> None:
    await marking.penstock.engine()
    many = [{"kind": "mark", "payload": {"assignment": "a1"}}] * 1_500
    jobs = await submit_rows(conn, many)
    number = await worker(conn)
    async with listening(marking.app_client, "/v1/topics/a1/events") as listener:
        assert (await listener.next()).name == "resync"
        started = await claim(conn, number)
        assert started[0]["id"] == jobs[0]
        await listener.status("running", jobs[0])
        await finish(conn, number, started)
        await listener.status("succeeded", jobs[0])
        assert len(listener.had) == 3


async def test_positions_are_sent_as_they_change(marking: Site, conn: asyncpg.Connection) -> None:
    """A job ahead leaves the queue: the position changes without a new version."""
    first, second = await submit(marking), await submit(marking)
    async with (
        listening(marking.app_client, f"/v1/jobs/{second}/events") as listener,
        listening(marking.app_client, "/v1/topics/a1/events") as topic,
    ):
        assert (await listener.next()).data["position"] == 2
        await conn.execute("select penstock.cancel_job($1)", first)
        for one in (listener, topic):
            await one.until(
                lambda event: event.data["id"] == second and event.data["position"] == 1,
                "the second is the next",
            )


async def test_staleness_is_sent_without_a_report_by_the_job(
    marking: Site, conn: asyncpg.Connection
) -> None:
    job = await submit(marking)
    number = await worker(conn, lease="1 hour")
    await claim(conn, number)
    async with listening(marking.app_client, f"/v1/jobs/{job}/events") as listener:
        assert (await listener.next()).data["staleness"] is None
        await marking.clock.advance("4m")
        await listener.until(
            lambda event: event.name == "job" and event.data["staleness"] is not None,
            "it is stale",
        )


async def test_a_watcher_of_an_account_sees_its_balance_and_its_jobs(marking: Site) -> None:
    await marking.make_account("u1", credits=5)
    async with listening(marking.app_client, "/v1/accounts/u1/events") as listener:
        event = await listener.next()
        assert event.name == "account"
        assert event.data == {"id": "u1", "balance": 5, "plan": None, "running": 0, "queued": 0}
        job = await submit(marking, account="u1")
        await listener.until(
            lambda event: event.name == "account" and event.data["queued"] == 1, "one waits"
        )
        await listener.status("queued", job)
        await marking.engine.accounts.grant("u1", 3, reason="test")
        await listener.until(
            lambda event: event.name == "account" and event.data["balance"] == 8, "8 credits"
        )
        await marking.work()
        await listener.status("succeeded", job)


async def test_a_batch_is_watched_as_one(marking: Site) -> None:
    body = {"jobs": [{"kind": "mark", "payload": {"assignment": f"a{n}"}} for n in range(3)]}
    batch = (await marking.app_client.post("/v1/jobs/batch", json=body)).json()["batch"]
    async with listening(marking.app_client, f"/v1/batches/{batch}/events") as listener:
        event = await listener.next()
        assert (event.name, event.data["queued"]) == ("batch", 3)
        await marking.work()
        await listener.until(lambda event: event.data["succeeded"] == 3, "all have succeeded")


async def test_an_account_sees_its_own_and_nothing_else(marking: Site) -> None:
    u1, u2 = await marking.account_client("u1"), await marking.account_client("u2")
    mine = await submit(marking, account="u1")
    theirs = await submit(marking, account="u2")
    nobody = await submit(marking)
    unknown = problem(await u1.get(f"/v1/jobs/{_other(mine)}/events"), 404, "unknown_job")
    for job in (theirs, nobody):
        refused = problem(await u1.get(f"/v1/jobs/{job}/events"), 404, "unknown_job")
        assert refused["detail"].replace(job, "") == unknown["detail"].replace(_other(mine), "")
    problem(await u1.get("/v1/accounts/u2/events"), 404, "unknown_account")
    problem(await u1.get("/v1/accounts/u3/events"), 404, "unknown_account")
    batch = (
        await u2.post(
            "/v1/jobs/batch", json={"jobs": [{"kind": "mark", "payload": {"assignment": "a2"}}]}
        )
    ).json()["batch"]
    problem(await u1.get(f"/v1/batches/{batch}/events"), 404, "unknown_batch")
    async with (
        listening(u1, "/v1/topics/a1/events") as topic,
        listening(u1, "/v1/accounts/u1/events") as account,
        listening(marking.admin, "/v1/topics/a1/events") as everyone,
    ):
        await marking.work()
        await everyone.all_are("succeeded", (mine, theirs, nobody))
        for listener in (topic, account):
            await listener.status("succeeded", mine)
            seen = {event.data["id"] for event in listener.had if event.name == "job"}
            assert seen == {mine}


def _other(job: str) -> str:
    return job[:-1] + ("0" if job[-1] != "0" else "1")


async def test_a_token_gives_access_to_what_it_names(marking: Site) -> None:
    job, other = await submit(marking), await submit(marking, payload={"assignment": "a2"})

    async def token(**named: Any) -> str:
        response = await marking.app_client.post("/v1/tokens", json=named)
        assert response.status_code < 300, response.text
        found: str = response.json()["token"]
        return found

    of_job, of_topic = await token(job=job), await token(topic="a1")
    nobody = marking.anonymous
    problem(await nobody.get(f"/v1/jobs/{job}/events"), 401, "unauthorized")
    for path in (f"/v1/jobs/{job}/events", "/v1/topics/a1/events"):
        async with listening(nobody, path, token=of_topic) as listener:
            assert (await listener.next()).data["id"] == job
    async with listening(nobody, f"/v1/jobs/{job}/events", token=of_job) as listener:
        assert (await listener.next()).data["id"] == job
    for given in (of_job, of_topic):
        refused = await nobody.get(f"/v1/jobs/{other}/events", params={"token": given})
        problem(refused, 404, "unknown_job")
        refused = await nobody.get("/v1/topics/a2/events", params={"token": given})
        problem(refused, 403, "not_allowed")
    cancels = await token(job=job, allow=["cancel"])
    refused = await nobody.get(f"/v1/jobs/{job}/events", params={"token": cancels})
    problem(refused, 403, "not_allowed")


async def test_a_revoked_key_closes_its_streams(marking: Site) -> None:
    job = await submit(marking)
    key = await marking.make_key("app")
    client = marking.client(key)
    made = await client.post("/v1/tokens", json={"job": job})
    token = made.json()["token"]
    async with (
        listening(client, "/v1/topics/a1/events") as by_key,
        listening(marking.anonymous, f"/v1/jobs/{job}/events", token=token) as by_token,
        listening(marking.admin, "/v1/topics/a1/events") as by_secret,
    ):
        await marking.engine.keys.revoke(key.split("_")[2])
        await by_key.over(seconds=2)
        await by_token.over(seconds=2)
        assert not by_secret.closed.is_set()


async def test_a_token_closes_its_stream_when_it_expires(marking: Site) -> None:
    made = await marking.app_client.post("/v1/tokens", json={"topic": "a1", "ttl_seconds": 1})
    token = made.json()["token"]
    async with listening(marking.anonymous, "/v1/topics/a1/events", token=token) as listener:
        await listener.over(seconds=4)


async def test_a_stopping_server_closes_all_streams(marking: Site) -> None:
    job = await submit(marking)
    async with (
        listening(marking.admin, "/v1/topics/a1/events") as topic,
        listening(marking.admin, f"/v1/jobs/{job}/events") as one,
    ):
        await one.next()
        for leave in marking.api.state.backend.on_leave:
            leave()
        await asyncio.gather(topic.over(1), one.over(1))


async def test_heartbeats_keep_an_idle_stream_open(
    marking: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.http.live.hub.HEARTBEAT_SECONDS", 0.5)
    async with listening(marking.admin, "/v1/topics/a1/events") as listener:

        async def has_two() -> bool:
            return listener.comments >= 2

        await eventually(has_two, "two heartbeats")
