"""Customers see why a job failed in general words, in every answer of the API."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

import penstock
from penstock import Cancel, Constant, Fail, Retry
from penstock.failures.verdict import CLASSES
from support import factory
from support.factory import submit_rows
from support.http.listening import listening
from support.http.site import Site
from support.waiting import eventually

# Assembled here, so that this file contains no text in the form of a key.
KEY = "sk-proj-" + "q7Rt2mXw9Zk4Lp8Vn3"
PATH = "/srv/prompts/internal.txt"
QUOTED = f"OpenAI said: invalid key {KEY}, see {PATH}"
KEPT = f"RuntimeError: {QUOTED.replace(KEY, '[redacted]')}"
BUG = "Something went wrong on our side. It was tried as often as it may be."
SMALL = "The picture is too small"
WORKER = "tests"
TEXTS = Path(penstock.__file__).parent / "dashboard" / "static/penstock/element/texts.js"
URL = "https://caller.example.com/told"


@pytest.fixture
async def failing(site: Site) -> Site:
    queue = site.penstock.queue("q")
    site.penstock.plan("free", default=True)

    @site.penstock.job(
        queue=queue, topic=Constant("t"), attempts=1, webhook="https://app.example.org/hook"
    )
    async def ask(how: str) -> None:
        match how:
            case "fail":
                raise Fail(f"{SMALL}, {KEY}")
            case "fail silently":
                raise Fail
            case "fail for operators":
                raise Fail(QUOTED, public=False)
            case "cancel":
                raise Cancel(SMALL)
            case "retry":
                raise Retry(QUOTED)
            case _:
                raise RuntimeError(QUOTED)

    @site.penstock.job(queue=queue, attempts=3, dedupe="key")
    async def ask_again(key: str) -> None:  # noqa: ARG001  # its dedupe key
        raise RuntimeError(QUOTED)

    await site.make_account("u1")
    return site


async def submit(site: Site, how: str = "raise", **more: Any) -> str:
    body = {"kind": "ask", "payload": {"how": how}, "account": "u1", **more}
    answer = await site.app_client.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


async def token(site: Site, **of: str) -> httpx.AsyncClient:
    """A browser."""
    answer = await site.app_client.post("/v1/tokens", json={**of, "allow": ["read", "cancel"]})
    return site.client(answer.json()["token"])


def hides(text: str) -> None:
    for secret in (KEY, PATH, "OpenAI", "RuntimeError", f'"{WORKER}"'):
        assert secret not in text, text


def is_public(job: dict[str, Any]) -> None:
    assert job["error"] == {
        "class": "bug",
        "reason": "attempts_exhausted",
        "message": BUG,
        "retryable": True,
    }
    for start in job.get("attempts", ()):
        assert (start["worker"], start["message"], start["error_class"]) == (None, None, "bug")
        assert start["frames"] == []
    hides(json.dumps(job))


def is_whole(job: dict[str, Any]) -> None:
    assert job["error"]["message"] == KEPT
    for start in job.get("attempts", ()):
        assert (start["worker"], start["message"]) == (WORKER, KEPT)
        assert " in failing.<locals>.ask" in start["frames"][0]
    assert KEY not in json.dumps(job)


async def test_customers_see_general_words_in_every_answer(failing: Site) -> None:
    """G14: keys of accounts, and browsers' tokens of each sort."""
    batch = await failing.app_client.post(
        "/v1/jobs/batch",
        json={
            "jobs": [{"kind": "ask", "payload": {"how": "raise"}, "account": "u1", "topic": "t"}]
        },
    )
    batch_id, job = batch.json()["batch"], batch.json()["items"][0]["id"]
    await failing.work()
    mine = await failing.account_client("u1")
    one, of_account, of_topic = f"/v1/jobs/{job}", "account", "topic"
    calls: list[tuple[httpx.AsyncClient, str, str]] = [
        (client, method, path)
        for client, whose in (
            (mine, of_account),
            (await token(failing, account="u1"), of_account),
            (await token(failing, topic="t"), of_topic),
            (await token(failing, job=job), "job"),
        )
        for method, path in (
            ("GET", one),
            ("POST", f"{one}/cancel"),
            *([("GET", "/v1/jobs")] if whose != "job" else []),
            *(
                [("GET", f"/v1/batches/{batch_id}"), ("POST", f"/v1/batches/{batch_id}/cancel")]
                if whose == of_account
                else []
            ),
        )
    ]
    assert len(calls) == 15
    for client, method, path in calls:
        answer = await client.request(method, path)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        for shown in found.get("items", [found]):
            is_public(shown)
        hides(answer.text)
    for client in (failing.app_client, failing.admin):
        is_whole((await client.get(one)).json())
        for path in ("/v1/jobs", "/v1/jobs?account=u1", f"/v1/batches/{batch_id}"):
            [shown] = (await client.get(path)).json()["items"]
            is_whole(shown)
        is_whole((await client.post(f"{one}/cancel")).json())


@pytest.mark.parametrize("customer_first", [True, False])
async def test_streams_show_each_watcher_its_own_view(
    failing: Site, *, customer_first: bool
) -> None:
    """G14: of one job, batch, topic or account, at the same time."""
    batch = await failing.app_client.post(
        "/v1/jobs/batch",
        json={
            "jobs": [{"kind": "ask", "payload": {"how": "raise"}, "account": "u1", "topic": "t"}]
        },
    )
    batch_id, job = batch.json()["batch"], batch.json()["items"][0]["id"]
    mine = await failing.account_client("u1")
    clients = [mine, failing.app_client] if customer_first else [failing.app_client, mine]
    paths = [
        f"/v1/jobs/{job}/events",
        "/v1/topics/t/events",
        "/v1/accounts/u1/events",
        f"/v1/batches/{batch_id}/events",
    ]
    for path in paths[1:]:
        async with listening(clients[0], path) as one, listening(clients[1], path) as other:
            for client, listener in ((clients[0], one), (clients[1], other)):
                assert (await listener.next()).name in ("job", "account", "batch"), client
    async with listening(clients[0], paths[0]) as one, listening(clients[1], paths[0]) as other:
        await one.next()
        await other.next()
        await failing.work()
        for client, listener in ((clients[0], one), (clients[1], other)):
            sent = (await listener.status("failed")).data
            (is_public if client is mine else is_whole)(sent)
    # New watchers' snapshots have the finished jobs, in any order.
    for path in paths[1:]:
        for client in clients:
            async with listening(client, path) as listener:
                event = await listener.until(
                    lambda event: event.name in ("job", "batch"), "the job or its batch"
                )
                [sent] = event.data.get("items", [event.data])
                (is_public if client is mine else is_whole)(sent)


async def test_each_watcher_of_a_scope_gets_changes_in_its_own_view(failing: Site) -> None:
    """G14"""
    mine = await failing.account_client("u1")
    path = "/v1/accounts/u1/events"
    async with listening(mine, path) as theirs, listening(failing.app_client, path) as ours:
        await theirs.next()
        await ours.next()
        job = await submit(failing)
        await failing.work()
        is_public((await theirs.status("failed", job)).data)
        is_whole((await ours.status("failed", job)).data)


async def test_a_customer_who_submits_or_retries_sees_general_words(failing: Site) -> None:
    """G14: a live duplicate, a job that finished while the caller waited, and a retried job."""
    mine = await failing.account_client("u1")
    again = {"kind": "ask_again", "payload": {"key": "k"}}
    first = await mine.post("/v1/jobs", json=again)
    assert first.json()["error"] is None
    await failing.work()
    for client, body in ((mine, again), (failing.app_client, {**again, "account": "u1"})):
        twin = (await client.post("/v1/jobs", json=body)).json()
        assert (twin["deduplicated"], twin["status"]) == (True, "scheduled")
        if client is mine:
            assert twin["error"]["message"] == "Something went wrong on our side."
            hides(json.dumps(twin))
        else:
            is_whole(twin)
    retried = await mine.post(f"/v1/jobs/{first.json()['id']}/retry")
    assert retried.status_code == 200
    assert retried.json()["error"]["class"] == "bug"
    hides(retried.text)


async def test_a_job_that_finishes_while_a_customer_waits_shows_general_words(
    failing: Site, conn: asyncpg.Connection
) -> None:
    """G14: `Prefer: wait` with the submit."""
    mine = await failing.account_client("u1")
    body = {"kind": "ask", "payload": {"how": "raise"}}
    waiting = asyncio.ensure_future(mine.post("/v1/jobs", json=body, headers={"Prefer": "wait=20"}))
    await eventually(
        lambda: conn.fetchval("select exists (select from penstock.job)"), "it was submitted"
    )
    await failing.work()
    is_public((await waiting).json())


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("fail", ("invalid_request", f"{SMALL}, [redacted]", True)),
        (
            "fail silently",
            ("invalid_request", "This input could not be processed.", None),
        ),
        (
            "fail for operators",
            ("invalid_request", "This input could not be processed.", None),
        ),
        ("cancel", ("cancelled", SMALL, True)),
        (
            "retry",
            (
                "provider_error",
                "The AI service reported an error. It was tried as often as it may be.",
                None,
            ),
        ),
    ],
)
async def test_messages_that_the_app_writes_for_customers_reach_them(
    failing: Site, how: str, error: tuple[str, str, bool | None]
) -> None:
    """G14: Fail and Cancel, and no other exception."""
    job = await submit(failing, how)
    await failing.work()
    mine = await failing.account_client("u1")
    found = (await mine.get(f"/v1/jobs/{job}")).json()["error"]
    assert (found["class"], found["message"], found.get("public")) == error
    assert KEY not in json.dumps((await failing.admin.get(f"/v1/jobs/{job}")).json())


async def test_a_webhook_of_a_submit_gets_the_customers_view(
    failing: Site, conn: asyncpg.Connection
) -> None:
    """G14: the app's own address gets the whole error."""
    await failing.start()
    payload = {"how": "raise"}
    job = str(await factory.submit(conn, "ask", payload=payload, account="u1", webhook_url=URL))
    await failing.work()
    await conn.execute("update penstock.delivery set next_at = penstock.clock()")
    rows = await conn.fetch(
        "select trusted, job::jsonb as job from penstock.claim_deliveries(10, '1 minute')"
    )
    sent = {row["trusted"]: row["job"] for row in rows if row["job"]["id"] == job}
    is_public(sent[False])
    is_whole(sent[True])


async def test_a_tenants_views_show_general_words(failing: Site, conn: asyncpg.Connection) -> None:
    """G14"""
    await submit(failing)
    await submit(failing, "fail")
    await failing.app_client.post(
        "/v1/jobs", json={"kind": "ask_again", "payload": {"key": "k"}, "account": "u1"}
    )
    await submit(failing, account="u2")
    await failing.work()
    theirs = await conn.fetch("select id from penstock.my_jobs where kind = 'ask'")
    async with conn.transaction():
        await conn.execute("set local role penstock_tenant")
        await conn.execute("set local penstock.account = 'u1'")
        rows = await conn.fetch("select error from penstock.my_jobs order by id")
        assert [row["error"]["message"] for row in rows] == [
            BUG,
            f"{SMALL}, [redacted]",
            "Something went wrong on our side.",
        ]
        of_all = [
            await conn.fetchval("select penstock.read_my_error($1)", row["id"]) for row in theirs
        ]
        assert sum(error is not None for error in of_all) == 2
        assert await conn.fetchval("select penstock.read_my_error($1)", uuid4()) is None
        for table in ("job", "finished"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with conn.transaction():
                    await conn.fetch(f"select error from penstock.{table}")


async def test_a_report_by_sql_stores_no_key(conn: asyncpg.Connection) -> None:
    """A worker in another language, a callback, a released attempt."""
    await factory.queue(conn)
    worker = await factory.worker(conn, "their-worker")
    [first, second] = await submit_rows(conn, [{"kind": "q"}] * 2)
    error = {"class": "bug", "message": f"it was {KEY}", "retryable": False}
    for job, outcome in ((first, "failed"), (second, "retry")):
        await factory.finish(conn, worker, await factory.claim(conn, worker), outcome, error=error)
        found = await factory.read(conn, job)
        assert found["error"]["message"] == "it was [redacted]"
        assert found["attempts"][0]["message"] == "it was [redacted]"
    [third] = await submit_rows(conn, [{"kind": "q"}])
    [row] = await factory.claim(conn, worker)
    assert await factory.hand_over(conn, worker, row, "a sign of some length") == "done"
    await conn.fetch(
        "select * from penstock.resolve_callbacks($1, $2, $3, $4, p_errors => $5)",
        [row["id"]],
        [row["attempt"]],
        ["a sign of some length"],
        ["failed"],
        [error],
    )
    assert (await factory.read(conn, UUID(str(third))))["error"]["message"] == "it was [redacted]"


async def test_general_words_are_the_same_in_sql_and_on_pages(conn: asyncpg.Connection) -> None:
    """G14: each class has its own sentence, the same in SQL and in the component."""
    words = {}
    for cls in CLASSES:
        words[cls] = await conn.fetchval("select penstock._general_words($1, null)", cls)
    other = await conn.fetchval("select penstock._general_words('solar_flare', null)")
    assert len({*words.values(), other}) == len(CLASSES) + 1
    page = re.sub(r'"\s*\+\s*"', "", TEXTS.read_text()).partition("const de =")[0]
    shown = dict(re.findall(r'"error\.(\w+)":\s*"([^"]*)"', page))
    assert shown.pop("public") == "{message}"
    assert shown.pop("other") == other
    del words["cancelled"]  # the component shows it as a status
    assert shown == words
