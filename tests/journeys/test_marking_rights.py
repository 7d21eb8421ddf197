"""The doors of the marking example: who may see answers, drive the queue, hand in work."""

import base64
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest
from standardwebhooks.webhooks import Webhook

from journeys.marking_site import HEADERS, Marking, running, teacher
from journeys.site import PATIENCE_SECONDS
from support import factory
from support.connections import connections
from support.waiting import eventually

pytestmark = pytest.mark.timeout(120)

SOMEBODY = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def shop_window(
    shared_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Marking]:
    """Web app and function without a worker, shared by tests that want no job to run."""
    with running(shared_database, tmp_path_factory.mktemp("marking")) as site:
        yield site


def test_the_queue_is_as_the_document_has_it(shop_window: Marking) -> None:
    """M3, M10, M11, M14: one at a time, three attempts, ten minutes, kept for seven days."""
    with psycopg.connect(shop_window.env["PENSTOCK_DSN"]) as conn:
        row = conn.execute(
            "select q.concurrency, q.max_attempts, q.timeout, r.kept, q.drive from penstock.queue q"
            " join penstock.retention_class r on r.id = q.succeeded_class where q.name = 'marking'"
        ).fetchone()
    assert row == (1, 3, timedelta(minutes=10), timedelta(days=7), "worker")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/results"),
        ("GET", "/results/assignments/a1"),
        ("GET", "/ai-queue"),
        ("GET", "/sign-in"),
        ("GET", "/sign-in?code=guess"),
        ("GET", "/api/assignments/a1"),
        ("GET", "/api/assignments/a1/live"),
        ("POST", "/api/assignments/a1/mark"),
        ("POST", "/api/assignments/a1/clear"),
        ("GET", "/api/ai-queue"),
        ("POST", f"/api/ai-queue/{SOMEBODY}/retry"),
        ("POST", "/api/function/stop"),
        ("POST", "/api/marking/process-queue"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/topics/a1/events"),
        ("POST", "/v1/queues/marking/process"),
    ],
)
async def test_nothing_opens_without_a_key(shop_window: Marking, method: str, path: str) -> None:
    """M13: what pupils wrote is for their teacher."""
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{shop_window.web_port}", trust_env=False
    ) as nobody:
        nobody.cookies.set("marking_teacher", "WyJ0ZWFjaGVyIiwgOTk5OTk5OTk5OV0=.00")
        told = await nobody.request(method, path, headers=HEADERS)
    assert told.status_code == 401, told.text
    assert "Ada" not in told.text


async def test_what_cannot_be_is_refused_by_name(shop_window: Marking) -> None:
    async with teacher(shop_window) as ana:
        bea = (await ana.answer_of("Bea", "a2"))["id"]
        mark = "/api/assignments/a1/mark"
        for path, fields, status, field in (
            (mark, {"submission_id": "none"}, 422, "submission_id"),
            (mark, {"submission_id": 7}, 422, "submission_id"),
            (mark, {"submission_id": SOMEBODY}, 404, "submission_id"),
            # Of another assignment.
            (mark, {"submission_id": bea}, 404, "submission_id"),
            (mark, {"score": 4}, 422, None),
            (mark, {"submission_id": "x" * 5000}, 413, None),
            ("/api/assignments/a9/mark", {}, 404, "assignment"),
            (f"/api/ai-queue/{SOMEBODY}/retry", {}, 404, "job_id"),
            ("/api/ai-queue/none/retry", {}, 404, "job_id"),
            ("/api/function/explode", {}, 404, "order"),
        ):
            told = await ana.press(path, **fields)
            assert (told.status_code, told.json()["field"]) == (status, field), told.text
        # Another site's page has our cookie with it, but not our header.
        for headers in ({}, {**HEADERS, "Origin": "https://elsewhere.example"}):
            told = await ana.client.post(mark, json={}, headers=headers)
            assert told.status_code == 403, told.text
        assert (await ana.client.get("/results/assignments/a9")).status_code == 404
        assert (await ana.look())["totals"]["unmarked"] == 30
        page = await ana.client.get("/results/assignments/a1")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "no-store"


async def test_marks_are_cleared_when_nothing_is_in_work(shop_window: Marking) -> None:
    async with teacher(shop_window) as ana:
        await ana.mark("Ada", "a2")
        refused = await ana.press("/api/assignments/a2/clear")
        assert refused.status_code == 409, refused.text
        cleared = await ana.press("/api/assignments/a1/clear")
        assert cleared.json()["totals"]["unmarked"] == 30


async def test_the_stream_of_one_assignment_opens_no_other(shop_window: Marking) -> None:
    """M8: the page's token is of its topic and the jobs in it, and only for looking."""
    async with teacher(shop_window) as ana:
        live = await ana.ask("/api/assignments/a1/live")
        refused = await ana.client.get(live["url"].replace("/a1/", "/a2/"))
        assert refused.status_code in (403, 404), refused.text
        await ana.mark("Bea", "a1")
        await ana.mark("Bea", "a2")
        mine, other = [(await ana.answer_of("Bea", one))["job"]["src"] for one in ("a1", "a2")]
        key = {"Authorization": f"Bearer {live['token']}"}
        seen = await ana.client.get(mine, headers=key)
        assert (seen.status_code, seen.json()["topic"]) == (200, "a1"), seen.text
        assert (await ana.client.get(other, headers=key)).status_code == 404
        assert (await ana.client.post(f"{mine}/cancel", headers=key)).status_code == 403
        assert (await ana.client.get(mine)).status_code == 401


async def test_the_function_works_for_us_alone(shop_window: Marking) -> None:
    """M13: checked against what another implementation of the standard signs."""
    secret = shop_window.env["MARKING_FUNCTION_SECRET"]
    signer = Webhook("whsec_" + base64.b64encode(secret.encode()).decode())
    job = str(uuid4())
    expires = datetime.fromtimestamp(time.time() + 2, UTC)
    work = {
        "job_id": job,
        "kind": "mark",
        "attempt": 1,
        "payload": {"answer": "water", "criteria": [{"name": "what", "words": ["water"]}]},
        "callback_url": f"http://127.0.0.1:{shop_window.web_port}/v1/callbacks/{job}",
        "token": f"1.{'A' * 43}",
        "expires_at": expires.isoformat(),
    }
    body = json.dumps(work)

    def signed(at: float, message: str = "m1", text: str = body) -> dict[str, str]:
        moment = datetime.fromtimestamp(at, UTC)
        return {
            "webhook-id": message,
            "webhook-timestamp": str(int(at)),
            "webhook-signature": f"v1,AAAA {signer.sign(message, moment, text)}",
        }

    now = time.time()
    wrong: list[tuple[dict[str, str], str]] = [
        ({}, body),
        (signed(now - 600), body),
        (signed(now + 600), body),
        (signed(now), body.replace("water", "wine")),
        ({**signed(now), "webhook-id": "m2"}, body),
        ({**signed(now), "webhook-signature": "v1,AAAA"}, body),
    ]
    async with httpx.AsyncClient(trust_env=False) as client:

        async def hand_in(headers: dict[str, str], text: str) -> Any:
            url = shop_window.env["MARKING_FUNCTION_URL"]
            return (await client.post(url, content=text, headers=headers)).status_code

        for headers, text in wrong:
            assert await hand_in(headers, text) == 401, headers
        assert await hand_in(signed(now, text="{}"), "{}") == 400
        # The same message again is no new work.
        assert [await hand_in(signed(now), body) for _ in range(3)] == [202] * 3

    async def ended() -> bool:
        return bool(shop_window.events("refused"))

    await eventually(ended, "its callback was refused", seconds=PATIENCE_SECONDS)
    assert len(shop_window.events("begin")) == len(shop_window.events("end")) == 1


async def test_an_unknown_address_is_a_page_of_the_app_and_not_of_the_dashboard(
    shop_window: Marking,
) -> None:
    """A teacher who mistypes an address is led back to the results, and operators to theirs."""
    async with teacher(shop_window) as ana:
        people = {"Accept": "text/html"}
        for path in ("/nope", "/results/nope", "/nope/nope", "/assets/nope.css"):
            page = await ana.client.get(path, headers=people)
            assert page.status_code == 404, path
            assert "Page not found" in page.text, path
            assert "To the results" in page.text, path
            assert "Penstock" not in page.text, path
        gone = await ana.client.get(f"/jobs/{SOMEBODY}", headers=people)
        assert gone.status_code == 303, "the dashboard asks who it is"
        script = await ana.client.get("/api/nope")
        assert script.headers["content-type"].startswith("application/")


async def test_the_totals_are_of_this_queue_alone(shop_window: Marking) -> None:
    """A Penstock may run other systems beside this one: their failures and times are not ours."""
    error = {"class": "bug", "message": "ValueError", "retryable": False}
    ends: tuple[tuple[str, dict[str, Any]], ...] = (("failed", {"error": error}), ("succeeded", {}))
    async with connections(shop_window.env["PENSTOCK_DSN"]) as connect:
        conn = await connect()
        await factory.queue(conn, "others")
        worker = await factory.worker(conn, queues=["others"])
        for outcome, more in ends:
            await factory.submit(conn, "others")
            started = await factory.claim(conn, worker, "others")
            await factory.finish(conn, worker, started, outcome, **more)
    async with teacher(shop_window) as ana:
        now = await ana.ask("/api/ai-queue")
    assert (now["failed_today"], now["avg_processing_seconds"]) == (0, None)
