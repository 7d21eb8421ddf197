"""The feedback example: who sees what, and what is refused. No job runs here."""

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from journeys.feedback_site import ANSWER, CODE, HEADERS, Feedback, Person, pupil, running, teacher


@pytest.fixture(scope="module")
def shop_window(
    shared_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Feedback]:
    """The web app alone, shared; each test brings its own people."""
    with running(shared_database, tmp_path_factory.mktemp("feedback"), model=False) as site:
        yield site


async def test_a_pupil_sees_only_his_own_submission(shop_window: Feedback) -> None:
    """F13: others get the same answer as for a number that does not exist."""
    async with pupil(shop_window, "Ada owner") as ada, pupil(shop_window, "Eve") as eve:
        number = (await ada.submit())["id"]
        assert (await ada.look(number))["id"] == number
        foreign = await eve.client.get(f"/api/abgaben/{number}")
        unknown = await eve.client.get(f"/api/abgaben/{2**80}")
        assert (foreign.status_code, unknown.status_code) == (404, 404)
        assert foreign.json() == unknown.json()
        assert (await eve.client.get("/api/abgaben")).json()["submissions"] == []


async def test_what_opens_a_job_opens_no_other(shop_window: Feedback) -> None:
    """F13: the pupil's page gets a token for its own job, and with it nothing else is seen."""
    async with pupil(shop_window, "Ada token") as ada, pupil(shop_window, "Eve") as eve:
        mine, theirs = (await ada.submit())["job"], (await eve.submit())["job"]

        async def status(src: str, token: str | None) -> int:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            return (await eve.client.get(src, headers=headers)).status_code

        assert await status(theirs["src"], theirs["token"]) == 200
        assert await status(mine["src"], theirs["token"]) == 404
        assert await status(mine["src"], None) == 401
        assert await status("/penstock/v1/jobs", theirs["token"]) in (401, 403)
        assert await status("/penstock/v1/topics/klasse/events", theirs["token"]) in (401, 403, 404)
        headers = {"Authorization": f"Bearer {theirs['token']}"}
        answer = await eve.client.post(f"{mine['src']}/cancel", headers=headers)
        assert answer.status_code == 404
        # Penstock's own pages ask who is there, too.
        assert (await eve.client.get("/penstock/")).status_code != 200


async def test_an_unknown_address_is_a_page_for_people(shop_window: Feedback) -> None:
    """In German, as the others."""
    async with pupil(shop_window, "Eve") as eve:
        for path in ("/nope", "/static/nope.css"):
            page = await eve.client.get(path, headers={"Accept": "text/html"})
            assert page.status_code == 404
            assert "Diese Seite gibt es nicht" in page.text, path
            assert "Zu den Aufgaben" in page.text
        script = await eve.client.get("/api/nope")
        assert script.json()["ok"] is False


async def test_the_class_is_for_the_teacher(shop_window: Feedback) -> None:
    """F13: neither a pupil nor a guess at the code gets in."""
    async with pupil(shop_window, "Eve") as eve:
        for path in ("/klasse", "/klasse?code=guess", "/klasse?code=", "/api/klasse"):
            assert (await eve.client.get(path)).status_code == 401
        for path in ("abgaben", "ki/anhalten", "ki/starten"):
            answer = await eve.client.post(f"/api/klasse/{path}", headers=HEADERS)
            assert answer.status_code == 401
        # A pupil's cookie under the teacher's name is still a pupil's.
        eve.client.cookies.set("feedback_teacher", eve.client.cookies["feedback_pupil"])
        assert (await eve.client.get("/api/klasse")).status_code == 401
    async with teacher(shop_window) as board:
        page = await board.client.get("/klasse")
        assert "50 Abgaben auf einmal" in page.text
        assert CODE not in page.text


async def test_nothing_works_without_a_signed_cookie(shop_window: Feedback) -> None:
    """F13"""
    async with pupil(shop_window, "Ada signed") as ada:
        number = (await ada.submit())["id"]
        forged = "x" + ada.client.cookies["feedback_pupil"][1:]
        for cookie in (None, forged, "nonsense", "."):
            ada.client.cookies.clear()
            if cookie is not None:
                ada.client.cookies.set("feedback_pupil", cookie)
            assert (await ada.hand_in()).status_code == 401
            assert (await ada.client.get(f"/api/abgaben/{number}")).status_code == 401
            page = await ada.client.get("/aufgaben")
            assert (page.status_code, page.headers["location"]) == (303, "/anmelden")


async def test_another_site_cannot_hand_in_for_somebody(shop_window: Feedback) -> None:
    async with pupil(shop_window, "Ada sites") as ada, teacher(shop_window) as board:
        assert (await ada.client.post("/api/abgaben", data={"answer": "x"})).status_code == 403
        evil = {**HEADERS, "Origin": "https://evil.example"}
        for path in ("/api/abgaben", "/anmelden", "/abmelden"):
            answer = await ada.client.post(path, data={"name": "Eve"}, headers=evil)
            assert answer.status_code == 403
        answer = await board.client.post("/api/klasse/ki/anhalten", headers=evil)
        assert answer.status_code == 403


async def test_every_field_is_checked_and_named(shop_window: Feedback) -> None:
    """In German, with what to do; nothing is stored."""
    async with pupil(shop_window, "Ada fields") as ada:
        cases = [
            ("answer", "noch nichts", await ada.hand_in(answer=" \n ")),
            ("answer", "zu lang", await ada.hand_in(answer="Wort " * 1_201)),
            ("answer", "ungültiges Zeichen", await ada.hand_in(answer="a\0b")),
            ("task", "gibt es nicht", await ada.hand_in(task="mathe")),
            ("submission_key", "8 bis 64", await ada.hand_in(submission_key="'; drop --")),
        ]
        for field, words, answer in cases:
            assert answer.status_code == 422, answer.text
            assert answer.json()["field"] == field
            assert words in answer.json()["error"]
        assert (await ada.hand_in(answer="a" * 200_000)).status_code == 413
        assert (await ada.client.get("/api/abgaben")).json()["submissions"] == []
        wrong = await ada.client.post("/anmelden", data={"name": " "})
        assert wrong.status_code == 422
        assert "Wie heißt du?" in wrong.text


async def test_a_name_on_the_page_is_text(shop_window: Feedback) -> None:
    async with pupil(shop_window, '"><script>alert(1)</script>') as eve:
        page = (await eve.client.get("/aufgaben")).text
        assert "<script>alert" not in page
        assert "Meine Aufgaben" in page


async def test_row_and_job_come_together_or_not_at_all(shop_window: Feedback) -> None:
    """F1: the commit itself is refused, after row and job have been made."""
    conn = await asyncpg.connect(shop_window.env["PENSTOCK_DSN"])
    try:
        await conn.execute(
            "create function feedback.refuse() returns trigger language plpgsql as"
            " $$ begin raise 'the disk is full'; end $$;"
            " create constraint trigger at_the_end after insert on feedback.submission"
            " deferrable initially deferred for each row execute function feedback.refuse()"
        )
        before = await _counts(conn)
        async with pupil(shop_window, "Ada disk") as ada:
            assert (await ada.hand_in()).status_code == 500
            assert await _counts(conn) == before
            await conn.execute("drop function feedback.refuse() cascade")
            await ada.submit()
        assert await _counts(conn) == tuple(count + 1 for count in before)
    finally:
        await conn.close()


async def test_a_double_click_is_one_submission(shop_window: Feedback) -> None:
    """F1: requests at the same moment, and one more later, under one key."""
    async with pupil(shop_window, "Ada click") as ada:

        async def click(person: Person) -> int:
            number: int = (await person.submit(submission_key="one-click"))["id"]
            return number

        both = await asyncio.gather(*(click(ada) for _ in range(5)))
        assert set(both) == {await click(ada)}
        [found] = (await ada.client.get("/api/abgaben")).json()["submissions"]
        assert found["answer"] == ANSWER


async def test_the_worker_needs_no_more_rights_than_the_app(shop_window: Feedback) -> None:
    """F13: one role for all of it, and it is no superuser."""
    conn = await asyncpg.connect(shop_window.env["PENSTOCK_DSN"])
    try:
        assert await conn.fetchval("select rolsuper from pg_roles where rolname = user") is False
        owners = await conn.fetch(
            "select distinct schemaname, tableowner = user from pg_tables"
            " where schemaname in ('feedback', 'penstock') order by 1"
        )
        assert [tuple(row) for row in owners] == [("feedback", True), ("penstock", True)]
    finally:
        await conn.close()


async def _counts(conn: asyncpg.Connection) -> tuple[int, int]:
    row = await conn.fetchrow(
        "select (select count(*) from feedback.submission), (select count(*) from penstock.job)"
    )
    assert row is not None
    return row[0], row[1]
