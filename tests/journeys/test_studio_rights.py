"""The studio example: who sees what, what is refused, and how it is said. No job runs here."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from journeys.processes import free_port
from journeys.studio_site import (
    FOLDER,
    FREE,
    GROWTH,
    HEADERS,
    PNG,
    PRO,
    STARTER,
    Studio,
    customer,
    running,
)

NEARLY_EMPTY, BROWSING, CLICKING = "customer-5", "customer-6", "customer-9"
WATCHING, OTHER = "customer-13", "customer-14"


@pytest.fixture(scope="module")
def shop_window(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """The web app alone, shared; each test brings its own customers."""
    folder = tmp_path_factory.mktemp("studio")
    with running(shared_database, folder, model=False, customers=14) as site:
        yield site


async def test_a_pages_token_opens_what_is_its_customers_and_orders_nothing(
    shop_window: Studio,
) -> None:
    """G1, G13, G14: what costs money goes through the app, which knows the price."""
    async with customer(shop_window, WATCHING) as ana, customer(shop_window, OTHER) as eve:
        mine, other = (await ana.order())["job"], (await eve.order())["job"]
        key = {"Authorization": f"Bearer {mine['token']}"}
        seen = await ana.client.get(mine["src"], headers=key)
        assert (seen.status_code, seen.json()["queued"]) == (200, 1), seen.text
        assert (await ana.client.get(mine["src"])).status_code == 401
        for path in (other["src"], f"/penstock/v1/accounts/{OTHER}"):
            assert (await ana.client.get(path, headers=key)).status_code in (403, 404), path
        cancel = await ana.client.post(f"{other['src']}/cancel", headers=key)
        assert cancel.status_code == 404, cancel.text
        before = (await ana.has())["balance"]
        payload = {"prompt": "a lake", "images": 1, "quality": "standard"}
        told = await ana.client.post(
            "/penstock/v1/jobs", json={"kind": "freestyle", "payload": payload}, headers=key
        )
        assert told.status_code == 403, told.text
        account = f"/penstock/v1/accounts/{WATCHING}/credits"
        gift = await ana.client.post(account, json={"amount": 5, "reason": "x"}, headers=key)
        assert gift.status_code == 403, gift.text
        assert (await ana.has())["balance"] == before
        cancel = await ana.client.post(f"{mine['src']}/cancel", headers=key)
        assert cancel.json()["status"] == "cancelled", cancel.text
        assert (await ana.has())["balance"] == before + seen.json()["credits"]["reserved"]


async def test_others_get_the_same_answer_as_for_what_does_not_exist(
    shop_window: Studio,
) -> None:
    """G14: order, cancel, picture, history."""
    conn = await asyncpg.connect(shop_window.env["PENSTOCK_DSN"])
    async with customer(shop_window, PRO) as ana, customer(shop_window, GROWTH) as eve:
        try:
            job = (await ana.order())["job_id"]
            await conn.execute(
                "insert into studio.image (job_id, number, account, png)"
                " values ($1::text::uuid, 1, $2, $3)",
                job,
                PRO,
                PNG,
            )
        finally:
            await conn.close()
        assert await ana.picture(f"/api/images/{job}/1.png") == PNG
        unknown = "00000000-0000-7000-8000-000000000000"
        for path in ("/api/generations/{}", "/api/images/{}/1.png"):
            answers = [await eve.client.get(path.format(one)) for one in (job, unknown)]
            assert [one.status_code for one in answers] == [404, 404]
            assert answers[0].json() == answers[1].json()
        for one in (job, unknown):
            answer = await eve.client.post(f"/api/generations/{one}/cancel", headers=HEADERS)
            assert answer.status_code == 404
        for odd in (f"{job}/2", f"{job}/0", f"{job}/-1", f"{job}/{10**30}", "x/1"):
            assert (await ana.client.get(f"/api/images/{odd}.png")).status_code == 404
        assert (await ana.client.get("/api/generations/7")).status_code == 404
        assert await eve.history() == []
        # What is there is shown, whatever the job says of itself: a new start has told nothing yet.
        shown = await ana.look(job)
        assert (shown["status"], shown["ready"]) == ("queued", 1)
        assert shown["message"].startswith("1 of 4 is ready; the rest is #1 in the queue.")
        assert [one["job_id"] for one in await ana.history()] == [job]


@pytest.mark.parametrize(
    "field",
    ["price", "priority", "account", "plan", "max_attempts", "timeout", "metadata", "user_id"],
)
async def test_what_is_the_servers_to_say_is_refused_by_name(
    shop_window: Studio, field: str
) -> None:
    """G1, G5, G18: price, plan, priority and account never come from the browser."""
    async with customer(shop_window, BROWSING) as ana:
        extra: dict[str, Any] = {field: 0}
        answer = await ana.press_generate(**extra)
        assert answer.status_code == 422
        assert answer.json()["field"] == field
        assert field in answer.json()["error"]
        assert await ana.history() == []


async def test_every_field_is_checked_and_named(shop_window: Studio) -> None:
    """G18: and nothing is taken."""
    wrong: list[tuple[str, Any]] = [
        ("job_type", "painting"),
        ("job_type", None),
        ("job_type", ["tryon"]),
        ("prompt", " \n "),
        ("prompt", "\u200b\u2060 \ufeff"),
        ("prompt", "word " * 101),
        ("prompt", "a\0b"),
        ("prompt", 7),
        ("images", 0),
        ("images", 9),
        ("images", "4"),
        ("images", 2.5),
        ("images", True),
        ("quality", "best"),
        ("quality", None),
    ]
    async with customer(shop_window, BROWSING) as ana:
        for field, value in wrong:
            answer = await ana.press_generate(**{field: value})
            assert answer.status_code == 422, (field, value, answer.text)
            assert answer.json()["field"] == field
            assert "  " not in answer.json()["error"]
        half = b'{"job_type": "tryon", "prompt": "\\ud800", "images": 1, "quality": "high"}'
        answer = await ana.client.post("/api/enqueue-generation", content=half, headers=HEADERS)
        assert (answer.status_code, answer.json()["field"]) == (422, "prompt")
        odd = b'{"\\ud800": 1}'
        answer = await ana.client.post("/api/enqueue-generation", content=odd, headers=HEADERS)
        assert (answer.status_code, answer.json()["field"]) == (422, "?")
        short = await ana.press_generate(key="short")
        assert (short.status_code, short.json()["field"]) == (422, "Idempotency-Key")
        path = "/api/enqueue-generation"
        for body in (b"[]", b"{", b"\xff", b"[" * 9_000):
            answer = await ana.client.post(path, content=body, headers=HEADERS)
            assert answer.status_code == 422, body[:10]
        answer = await ana.client.post(path, content=b" " * 20_000, headers=HEADERS)
        assert answer.status_code == 413
        assert await ana.history() == []
        assert (await ana.has())["balance"] == 50


async def test_too_few_credits_are_said_with_balance_and_price(shop_window: Studio) -> None:
    """G2: nothing is queued, and the hour's starts are not used up by it."""
    async with customer(shop_window, NEARLY_EMPTY) as ana:
        refused = await ana.press_generate(images=8, quality="high")
        assert refused.status_code == 402
        said = refused.json()
        assert (said["balance"], said["price"], said["code"]) == (10, 24, "insufficient_credits")
        assert said["error"] == (
            "This costs 24 credits, and you have 10. Ask for fewer images or for standard quality, "
            "or ask the operator for more."
        )
        # A film costs five times as much.
        film = await ana.press_generate(images=3, job_type="video")
        assert (film.status_code, film.json()["price"]) == (402, 15)
        assert await ana.history() == []
        has = await ana.has()
        assert (has["balance"], has["queued"], has["submitted_last_hour"]) == (10, 0, 0)
        assert (await ana.order(images=2, job_type="video"))["new_balance"] == 0
        # There is nothing smaller to ask for.
        least = await ana.press_generate(images=1)
        sentence = "This costs 1 credit, and you have 0."
        assert least.json()["error"] == f"{sentence} Ask the operator for more."
        await ana.become_operator()
        least = await ana.press_generate(images=1)
        assert least.json()["error"] == f"{sentence} Buy credits in the operator's corner."


async def test_over_the_hours_limit_one_is_told_when_to_come_back(shop_window: Studio) -> None:
    """G7: free has ten in an hour; eight images count as two."""
    async with customer(shop_window, FREE) as ana:
        await ana.become_operator()
        await ana.buy()
        began = datetime.now(UTC)
        for _ in range(8):
            await ana.order(images=1)
        await ana.order(images=8)
        refused = await ana.press_generate(images=1)
        assert refused.status_code == 429
        said = refused.json()
        assert said["code"] == "rate_limited"
        assert 3_500 < int(refused.headers["retry-after"]) <= 3_600
        then = datetime.fromisoformat(said["next_at"])
        assert began <= then - timedelta(hours=1) <= datetime.now(UTC)
        assert "The free plan has 10 orders an hour" in said["error"]
        # A whole minute, and not one that is too early.
        up = then + timedelta(seconds=59, microseconds=999_999)
        assert f"pass at {up:%H:%M} UTC" in said["error"]
        assert (await ana.press_generate(images=1)).json()["next_at"] == said["next_at"]
        has = await ana.has()
        assert (has["submitted_last_hour"], has["per_hour"], has["balance"]) == (10, 10, 4)
        assert datetime.fromisoformat(has["next_submit_at"]) == then


async def test_a_double_click_is_one_order(shop_window: Studio) -> None:
    """G1: requests at the same moment, and one more later, under one key."""
    async with customer(shop_window, CLICKING) as ana, customer(shop_window, STARTER) as ben:
        await ana.become_operator()
        told = await asyncio.gather(*(ana.order(key="one-click", images=2) for _ in range(5)))
        told.append(await ana.order(key="one-click", images=2))
        assert len({one["job_id"] for one in told}) == 1
        assert len(await ana.history()) == 1
        assert (await ana.has())["balance"] == 8
        other = await ana.press_generate(key="one-click", images=3)
        assert (other.status_code, other.json()["field"]) == (422, "Idempotency-Key")
        # Somebody else's key of the same letters is another key.
        assert (await ben.order(key="one-click", images=2))["job_id"] != told[0]["job_id"]
        bought = await asyncio.gather(*(ana.buy("one-purchase") for _ in range(5)))
        bought.append(await ana.buy("one-purchase"))
        assert {one["balance"] for one in bought} == {18}
        assert sum(not one["replayed"] for one in bought) == 1


async def test_credits_and_faults_are_for_the_operator(shop_window: Studio) -> None:
    async with customer(shop_window, "customer-10") as eve:
        for path in ("credits", "fault"):
            answer = await eve.client.post(f"/api/operator/{path}", json={}, headers=HEADERS)
            assert answer.status_code == 401
        for code in ("", "guess"):
            answer = await eve.client.get("/operator", params={"code": code})
            assert answer.status_code == 401
            assert answer.headers["content-type"].startswith("text/html")
            assert "Open this with the link that is printed at the start." in answer.text
        # A customer's cookie under the operator's name is still a customer's.
        eve.client.cookies.set("studio_operator", eve.client.cookies["studio_customer"])
        answer = await eve.client.post("/api/operator/credits", json={}, headers=HEADERS)
        assert answer.status_code == 401
        eve.client.cookies.delete("studio_operator")
        assert "Buy 10 credits" not in (await eve.client.get("/")).text
        await eve.become_operator()
        assert "Buy 10 credits" in (await eve.client.get("/")).text
        for body in ({}, {"reference": "short"}, {"reference": "a\0" * 8}, {"amount": 1_000}):
            answer = await eve.client.post("/api/operator/credits", json=body, headers=HEADERS)
            assert answer.status_code == 422
        odd_ones: list[Any] = ["everything", ["broken"], {}, 5, None]
        for odd in odd_ones:
            answer = await eve.client.post(
                "/api/operator/fault", json={"fault": odd}, headers=HEADERS
            )
            assert (answer.status_code, answer.json()["field"]) == (422, "fault")
        # No model runs here, and it is said so.
        answer = await eve.client.post("/api/operator/fault", json={}, headers=HEADERS)
        assert answer.status_code == 502
        assert (await eve.has())["balance"] == 50
        # Whoever leaves takes the operator along.
        assert (await eve.client.post("/sign-out")).status_code == 303
        await eve.sign_in()
        assert "Buy 10 credits" not in (await eve.client.get("/")).text


async def test_an_unknown_address_is_a_page_for_people(shop_window: Studio) -> None:
    async with customer(shop_window, BROWSING) as eve:
        for path in ("/nope", "/static/nope.css"):
            page = await eve.client.get(path, headers={"Accept": "text/html"})
            assert page.status_code == 404
            assert "Page not found" in page.text, path
            assert "To the studio" in page.text
        script = await eve.client.get("/api/nope")
        assert script.headers["content-type"] == "application/json"


async def test_a_page_of_another_customer_does_nothing(shop_window: Studio) -> None:
    """Another tab signed in as somebody else: nobody orders with, or sees, what is not theirs."""
    async with customer(shop_window, "customer-10") as eve:
        await eve.become_operator()
        has = await eve.has()
        job = "00000000-0000-7000-8000-000000000000"
        asked = [("GET", path) for path in ("history", "balance", f"generations/{job}")]
        asked += [("GET", f"images/{job}/1.png"), ("POST", f"generations/{job}/cancel")]
        asked += [("POST", path) for path in ("enqueue-generation", "operator/credits")]
        for method, path in [*asked, ("POST", "operator/fault")]:
            answer = await eve.client.request(
                method, f"/api/{path}", headers={**HEADERS, "X-Account": PRO}
            )
            assert (answer.status_code, answer.json()["code"]) == (409, "another_customer"), path
            assert answer.json()["error"] == (
                "You are signed in as another customer in this browser now."
            )
        assert await eve.has() == has
        eve.client.headers["X-Account"] = eve.account
        assert await eve.has() == has
        eve.client.cookies.clear()
        assert (await eve.client.get("/api/balance")).status_code == 401


async def test_odd_requests_are_answered_with_a_sentence(shop_window: Studio) -> None:
    async with customer(shop_window, "customer-10") as eve:
        assert (await eve.ask("/api/history?before="))["items"] == []
        answer = await eve.client.get("/api/history?before=yesterday")
        assert (answer.status_code, answer.json()["field"]) == (422, "before")
        answer = await eve.client.get("/api/enqueue-generation")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert answer.json()["error"] == (
            "This address is there, but not for a request of this kind."
        )


@pytest.mark.parametrize(
    ("words", "env", "sentence"),
    [
        (["--port", "99999"], {}, "--port is '99999'; it must be a number from 1 to 65535"),
        ([], {"STUDIO_PORT": "web"}, "--port is 'web'; it must be a number from 1 to 65535"),
        ([], {"IMAGE_TIMEOUT": "200"}, "IMAGE_TIMEOUT is '200'; it may be a number up to 70"),
        ([], {"IMAGE_TIMEOUT": "soon"}, "IMAGE_TIMEOUT is 'soon'; it may be a number up to 70"),
    ],
)
def test_settings_that_cannot_work_are_said_at_the_start(
    tmp_path: Path, words: list[str], env: dict[str, str], sentence: str
) -> None:
    with (tmp_path / "said").open("w+") as said:
        given = subprocess.run(
            [sys.executable, str(FOLDER), *words],
            env={**os.environ, "STUDIO_PORT": str(free_port()), **env},
            cwd=tmp_path,
            stdout=said,
            stderr=said,
            timeout=60,
            check=False,
        )
        said.seek(0)
        text = said.read()
    assert given.returncode != 0
    assert sentence in text
    assert "Traceback" not in text


async def test_nothing_works_without_a_signed_cookie(shop_window: Studio) -> None:
    """G14"""
    async with customer(shop_window, "customer-11") as ana:
        job = (await ana.order(images=1))["job_id"]
        forged = "x" + ana.client.cookies["studio_customer"][1:]
        for cookie in (None, forged, "nonsense", "."):
            ana.client.cookies.clear()
            if cookie is not None:
                ana.client.cookies.set("studio_customer", cookie)
            assert (await ana.press_generate()).status_code == 401
            for path in (f"generations/{job}", "history", "balance", f"images/{job}/1.png"):
                assert (await ana.client.get(f"/api/{path}")).status_code == 401
            page = await ana.client.get("/")
            assert (page.status_code, page.headers["location"]) == (303, "/sign-in")
        answer = await ana.client.post("/sign-in", data={"customer": "customer-99"})
        assert answer.status_code == 422
        assert "Choose one of the customers." in answer.text


async def test_another_site_cannot_order_for_somebody(shop_window: Studio) -> None:
    async with customer(shop_window, "customer-12") as ana:
        plain = await ana.client.post("/api/enqueue-generation", json={})
        assert plain.status_code == 403
        evil = {**HEADERS, "Origin": "https://evil.example"}
        for path in ("/api/enqueue-generation", "/sign-in", "/sign-out"):
            answer = await ana.client.post(path, headers=evil)
            assert answer.status_code == 403
            assert "This request did not come from our page." in answer.text
            is_page = answer.headers["content-type"].startswith("text/html")
            assert is_page == (not path.startswith("/api"))


async def test_a_prompt_is_text_and_the_page_has_plan_and_prices(shop_window: Studio) -> None:
    """G16: nothing that was typed is on the page before its script puts it there, as text."""
    async with customer(shop_window, "customer-8") as ana:
        await ana.order(images=1, prompt="<script>alert(1)</script>")
        page = await ana.client.get("/")
        assert "<script>alert" not in page.text
        for words in ("Try-on", "Product", "Freestyle", "Workflow", "Video", "customer 8"):
            assert words in page.text
        assert 'data-standard="5" data-high="15"' in page.text
        assert "script-src 'self'" in page.headers["content-security-policy"]
        has = await ana.has()
        facts = (has["plan"], has["priority"], has["concurrency"], has["per_hour"])
        assert facts == ("pro", 10, 4, 999)


async def test_order_and_job_come_together_or_not_at_all(shop_window: Studio) -> None:
    """G1: the commit itself is refused, after the credits were taken and the jobs made."""
    conn = await asyncpg.connect(shop_window.env["PENSTOCK_DSN"])
    try:
        async with customer(shop_window, "customer-7") as ana:
            await conn.execute(
                "create function studio.refuse() returns trigger language plpgsql as"
                " $$ begin if new.account = 'customer-7' then raise 'the disk is full'; end if;"
                " return new; end $$;"
                " create constraint trigger at_the_end after insert on studio.generation"
                " deferrable initially deferred for each row execute function studio.refuse()"
            )
            answer = await ana.press_generate(images=8)
            assert answer.status_code == 500
            assert answer.json()["error"] == (
                "Something went wrong here. Look at your orders before you try again."
            )
            has = await ana.has()
            assert (has["balance"], has["queued"], has["submitted_last_hour"]) == (100, 0, 0)
            await conn.execute("drop function studio.refuse() cascade")
            assert (await ana.order(images=8))["new_balance"] == 92
    finally:
        await conn.close()
