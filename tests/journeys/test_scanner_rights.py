"""What the scanner refuses, and who may see what; no worker runs here."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from journeys.processes import EXAMPLES, free_port
from journeys.scanner_site import CODE, FOLDER, Scanner, author, running
from support.clock import Clock

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def window(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scanner]:
    with running(shared_database, tmp_path_factory.mktemp("scanner"), scale=0.01) as site:
        yield site


async def test_what_is_wrong_with_a_package_is_said_with_its_field(window: Scanner) -> None:
    wrong: list[tuple[str, Any]] = [
        ("name", ""),
        ("name", "Tidy Logs"),
        ("name", "a" * 81),
        ("name", "<b>"),
        ("name", None),
        ("text", " \n "),
        ("text", "a\0b"),
        ("text", "a" * 50_001),
        ("text", 7),
        ("behaviour", "explode"),
        ("behaviour", ["normal"]),
    ]
    async with author(window) as ana:
        for field, value in wrong:
            answer = await ana.press_submit(**{field: value})
            assert (answer.status_code, answer.json()["field"]) == (422, field), (value, answer)
        path = "/api/v1/submissions"
        key = {"Idempotency-Key": uuid4().hex}
        half = b'{"name": "a", "text": "\\ud800"}'
        answer = await ana.client.post(path, content=half, headers=key)
        assert (answer.status_code, answer.json()["field"]) == (422, "text")
        for body in (b"[]", b"{", b"\xff", b"[" * 9_000, b'{"name": "a", "price": 1}'):
            answer = await ana.client.post(path, content=body, headers=key)
            assert answer.status_code == 422, body[:10]
        answer = await ana.client.post(path, content=b" " * 400_000, headers=key)
        assert answer.status_code == 413
        for odd in ("short", "a b c d e f g h i j k l"):
            answer = await ana.press_submit(key=odd)
            assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key")
        answer = await ana.client.get(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_a_double_click_is_one_submission(window: Scanner) -> None:
    async with author(window) as ana:
        key = uuid4().hex
        told = await asyncio.gather(*(ana.press_submit(key=key) for _ in range(5)))
        assert len({one.json()["id"] for one in told}) == 1
        assert sorted(one.status_code for one in told) == [200] * 4 + [201]
        other = await ana.press_submit(key=key, name="another")
        assert (other.status_code, other.json()["field"]) == (422, "Idempotency-Key")


async def test_the_operators_answers_need_the_secret(window: Scanner) -> None:
    """S11"""
    async with author(window) as eve:
        for path in ("metrics", "status"):
            for secret in (None, "guess"):
                answer = await eve.ask_operator(path, secret)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
            assert (await eve.ask_operator(path)).status_code == 200
        for hours in ("0", "2161", "-1", "many", "1.5"):
            answer = await eve.ask_operator(f"metrics?hours={hours}")
            assert (answer.status_code, answer.json()["field"]) == (422, "hours")


async def test_packages_are_listed_and_only_the_operator_has_their_ids(window: Scanner) -> None:
    """S8, S11: who knows an id may look at a submission, so a list for everybody has none."""
    operator = {"Authorization": f"Bearer {CODE}"}
    async with author(window) as ana:
        name = f"listed-{uuid4().hex[:8]}"
        made = (await ana.press_submit(name=name)).json()["id"]
        page = (await ana.client.get("/packages")).text
        assert page.count(name) == 1
        assert "Received" in page
        assert str(made) not in page
        newest = (await ana.client.get("/api/v1/admin/submissions", headers=operator)).json()
        assert newest["submissions"][0]["name"] == name
        assert newest["submissions"][0]["id"] == made
        for headers in ({}, {"Authorization": "Bearer guess"}):
            answer = await ana.client.get("/api/v1/admin/submissions", headers=headers)
            assert answer.status_code == 401
        assert made not in (await ana.client.get("/operator")).text


async def test_an_unknown_address_is_a_page_for_people(window: Scanner) -> None:
    async with author(window) as eve:
        for path in ("/nope", "/static/nope.css", "/penstock/nope", f"/submit/{uuid4()}"):
            page = await eve.client.get(path, headers={"Accept": "text/html"})
            assert page.status_code == 404
            assert page.headers["content-type"] == "text/html; charset=utf-8", path
        script = await eve.client.get("/api/v1/nope")
        assert "error" in script.json()


async def test_an_unknown_submission_is_not_there(window: Scanner) -> None:
    async with author(window) as eve:
        for odd in (uuid4(), "1", "../admin"):
            for path in (f"/api/v1/submissions/{odd}", f"/submit/{odd}"):
                answer = await eve.client.get(path)
                assert answer.status_code == 404, path
        answer = await eve.client.post(f"/api/v1/submissions/{uuid4()}/again")
        assert answer.status_code == 404
        assert answer.json()["error"] == "There is no submission with this id."
        made = await eve.submit()
        early = await eve.client.post(f"/api/v1/submissions/{made}/again")
        assert early.status_code == 409
        page = await eve.client.get(f"/submit/{made}")
        assert page.status_code == 200
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert page.headers["referrer-policy"] == "no-referrer"
        # The text is on no page: only its scan reads it.
        assert "Notes" not in page.text


async def test_waiting_is_neither_late_nor_stuck(window: Scanner) -> None:
    """S1, S7: a backlog of days spends no budget and frightens nobody."""
    conn = await asyncpg.connect(window.env["PENSTOCK_DSN"])
    try:
        async with author(window) as ana:
            made = await ana.submit("hang_tier1")
            await Clock(conn).advance("2d")
            assert await conn.fetch("select * from penstock.recover_jobs()") == []
            seen = await ana.look(made)
            assert (seen["state"], seen["staleness"]["stale"]) == ("RECEIVED", False)
            assert seen["recovery"]["count"] == 0
            assert (await ana.operator_sees("status"))["stuck"] == []
    finally:
        await conn.close()


async def test_submission_and_job_come_together_or_not_at_all(window: Scanner) -> None:
    """The commit itself is refused, after both were written."""
    conn = await asyncpg.connect(window.env["PENSTOCK_DSN"])
    count = "select (select count(*) from scanner.submission), (select count(*) from penstock.job)"
    try:
        async with author(window) as ana:
            before = await conn.fetchrow(count)
            await conn.execute(
                "create function scanner.refuse() returns trigger language plpgsql as"
                " $$ begin raise 'the disk is full'; end $$;"
                " create constraint trigger at_the_end after insert on scanner.submission"
                " deferrable initially deferred for each row execute function scanner.refuse()"
            )
            answer = await ana.press_submit()
            assert answer.status_code == 500
            assert "with the same key it is not taken twice" in answer.json()["error"]
            assert await conn.fetchrow(count) == before
            await conn.execute("drop function scanner.refuse() cascade")
            await ana.submit()
    finally:
        await conn.close()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("SCANNER_TIME_SCALE", "2", "SCANNER_TIME_SCALE is '2'; it may be a number from 0.001 to"),
        ("SCANNER_TIER_SECONDS", "900", "SCANNER_TIER_SECONDS is '900'; it may be a number from 0"),
    ],
)
def test_settings_that_cannot_work_are_said_at_the_start(
    tmp_path: Path, name: str, value: str, sentence: str
) -> None:
    given = subprocess.run(
        [sys.executable, str(FOLDER)],
        env={"PYTHONPATH": str(EXAMPLES), "SCANNER_PORT": str(free_port()), name: value},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert given.returncode != 0
    assert sentence in given.stderr
    assert "Traceback" not in given.stderr


async def test_the_token_of_a_submission_opens_its_job_alone(window: Scanner) -> None:
    """For looking only; nothing of Penstock's opens without one."""
    async with author(window) as ana:
        mine, other = [(await ana.press_submit()).json()["job"] for _ in range(2)]
        key = {"Authorization": f"Bearer {mine['token']}"}
        seen = await ana.client.get(mine["src"], headers=key)
        assert (seen.status_code, seen.json()["status"]) == (200, "queued"), seen.text
        assert (await ana.client.get(other["src"], headers=key)).status_code == 404
        assert (await ana.client.post(f"{mine['src']}/cancel", headers=key)).status_code == 403
        for path in (mine["src"], f"{mine['src']}/events", "/penstock/v1/jobs"):
            assert (await ana.client.get(path)).status_code == 401, path
        script = await ana.client.get("/penstock/static/penstock.js")
        assert script.headers["content-type"].startswith("text/javascript")
        # Penstock's answers keep their own headers: the app adds none to them.
        assert script.headers["content-security-policy"].startswith("default-src 'none'")
