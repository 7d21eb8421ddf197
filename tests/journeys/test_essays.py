"""Journeys through the essays example: real processes, real HTTP, a model that misbehaves."""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path

import asyncpg
import pytest

from journeys.essays_site import ESSAY, GIF, HEADERS, JPEG, PNG, WEBP, Essays, Person, browser
from journeys.processes import EXAMPLES, Program, free_port
from journeys.site import PATIENCE_SECONDS
from support.waiting import eventually

pytestmark = pytest.mark.timeout(120)

# The model hangs for as long as it is told to; on a busy machine nothing takes no time.
AT_ONCE_SECONDS = 5.0


async def test_analyze_answers_at_once_and_the_result_comes_later(
    essays: Essays, ana: Person, shared_conn: asyncpg.Connection
) -> None:
    """E1, E5, E7: the model hangs, and neither the submit nor the status waits for it."""
    await essays.order("hang", path="/score")
    essays.start_worker("desk-1")
    began = time.monotonic()
    answer = (await ana.save()).json()
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert answer["ok"] is True
    assert answer["submission"]["id"] == answer["submission_id"]
    assert answer["submission"]["status"] == "pending"

    number = answer["submission_id"]
    working = await ana.sees(number, "the worker is at it", status="processing", message="scoring")
    assert working["analysis_result"] is None
    assert working["processed_at"] is None
    workers = await shared_conn.fetch("select worker_id from penstock.worker_health where alive")
    assert [row["worker_id"] for row in workers] == ["desk-1"]


async def test_the_result_is_in_the_apps_own_row_when_the_job_has_ended(
    essays: Essays, ana: Person, shared_conn: asyncpg.Connection
) -> None:
    """E1, E7: what on_finish wrote, word for word what the job's result is."""
    essays.start_worker()
    number = await ana.submit()
    done = await ana.sees(number, "the essay is analyzed", status="done")
    assert set(done) >= {
        "id",
        "status",
        "analysis_result",
        "error_message",
        "submitted_at",
        "processed_at",
        "word_count",
    }
    assert done["word_count"] == len(ESSAY.split())
    assert done["error_message"] is None
    assert done["submitted_at"] < done["processed_at"]
    assert 1 <= done["analysis_result"]["band"] <= 9
    same = await shared_conn.fetchval(
        "select penstock.read_job(job_id)->'result' = analysis_result"
        " from essays.writing_submissions where id = $1",
        number,
    )
    assert same


async def test_a_worker_that_is_killed_loses_nothing_and_nothing_is_paid_twice(
    essays: Essays, ana: Person, shared_conn: asyncpg.Connection
) -> None:
    """E12: kill -9 between the two calls; the next worker goes on behind the first."""
    before = await essays.paid()
    ended = await shared_conn.fetchval("select array_agg(id) from penstock.finished") or []
    await essays.order("hang", path="/score")
    worker = essays.start_worker("first")
    number = await ana.submit()
    await ana.sees(number, "the first worker scores", status="processing", message="scoring")

    async def asked_to_score() -> bool:
        paid = await essays.paid()
        return any(key.endswith("score") for key in paid.keys() - before.keys())

    await eventually(asked_to_score, "the model is asked", seconds=PATIENCE_SECONDS)
    worker.kill()
    await essays.order("ok")
    essays.start_worker("second")
    await ana.sees(number, "the second worker finishes", status="done")

    paid = {key: times for key, times in (await essays.paid()).items() if key not in before}
    assert sorted(paid.values()) == [1, 2]  # read once; scored by both under one key
    assert [key.rpartition(":")[2] for key in paid if paid[key] == 1] == ["outline"]
    jobs = await shared_conn.fetch(
        "select status::text, attempt from penstock.finished where id <> all ($1)", ended
    )
    assert [tuple(job) for job in jobs] == [("succeeded", 2)]
    assert await shared_conn.fetchval("select count(*) from penstock.job") == 0


async def test_an_outage_of_the_model_costs_no_attempt(
    essays: Essays, ana: Person, shared_conn: asyncpg.Connection
) -> None:
    """E12, E15: the person sees why it waits, and then the result."""
    [model] = [one for one in essays.programs if one.port == essays.model_port and one.is_running]
    model.kill()
    essays.start_worker()
    number = await ana.submit()
    away = "The AI service does not answer at the moment."

    async def told() -> bool:
        now = await ana.status(number)
        return now["status"] == "pending" and away in now["message"] and now["next_try_at"]

    await eventually(told, "why it waits, and until when", seconds=PATIENCE_SECONDS)
    assert (await ana.status(number))["error_message"] is None
    essays.start_model().wait_ready()
    await ana.sees(number, "it is done after all", status="done")
    failures = await shared_conn.fetchval(
        "select f.failures from penstock.finished f"
        " join essays.writing_submissions s on s.job_id = f.id where s.id = $1",
        number,
    )
    assert failures == 0


async def test_a_model_call_is_given_up_after_its_limit(essays: Essays, ana: Person) -> None:
    """E13: two minutes unless AI_SERVICE_TIMEOUT says otherwise; a later try may succeed."""
    await essays.order("hang")
    essays.env["AI_SERVICE_TIMEOUT"] = "2"
    essays.env["ESSAYS_RETRY_DELAY"] = "2"
    essays.start_worker()
    number = await ana.submit()
    await ana.sees(
        number, "the call is given up", status="pending", message="did not answer within 2 s"
    )
    await essays.order("ok")
    await ana.sees(number, "the next call succeeds", status="done")


async def test_what_fails_for_good_shows_why(essays: Essays, ana: Person) -> None:
    """E7, E12: a refusal at once, the rest when the attempts are used up."""
    worker = essays.start_worker()
    for mode, why, calls in (
        ("refuse", "The model refused this essay (422).", 1),
        ("error", "The model failed (500).", 5),
        ("garbage", "The model's answer could not be read.", 5),
    ):
        before = sum((await essays.paid()).values())
        await essays.order(mode)
        failed = await ana.sees(await ana.submit(), f"{mode} has failed", status="failed")
        assert why in failed["error_message"]
        assert failed["analysis_result"] is None
        assert failed["processed_at"] is not None
        assert sum((await essays.paid()).values()) - before == calls
    assert ESSAY not in worker.printed


async def test_one_command_starts_everything_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    """E1, E12: as a newcomer runs it, in an empty folder: no server, no settings, no set-up."""
    essays = Essays("", tmp_path)
    ports = {"ESSAYS_PORT": str(essays.web_port), "MODEL_PORT": str(essays.model_port)}
    everything = Program(
        [str(EXAMPLES / "essays")],
        {**ports, "MODEL_SECONDS": "0.2"},
        tmp_path / "everything.log",
        port=essays.web_port,
        cwd=tmp_path,
    )

    async def announced() -> bool:
        return f"Practise at http://127.0.0.1:{essays.web_port}" in everything.printed

    async def started_again() -> bool:
        return "The worker died" in everything.printed

    try:
        everything.wait_ready()
        await eventually(announced, "the address is printed", seconds=PATIENCE_SECONDS)
        async with browser(essays) as person:
            await person.sign_in("Ana")
            await person.sees(await person.submit(), "the first essay is done", status="done")

            await essays.order("hang", path="/score")
            second = await person.submit()
            await person.sees(second, "a worker scores", status="processing", message="scoring")
            os.kill(_process(everything, "worker"), signal.SIGKILL)
            await eventually(started_again, "another worker", seconds=PATIENCE_SECONDS)
            await essays.order("ok")
            await person.sees(second, "the second essay is done", status="done")
    finally:
        code = everything.end(signal.SIGINT)
    assert code == 0, everything.printed
    assert everything.printed.endswith("All parts have stopped.\n")
    assert "Traceback" not in everything.printed
    for part in ("model", "worker", "web app"):
        with pytest.raises(ProcessLookupError):
            os.kill(_process(everything, part), 0)
    assert not (tmp_path / ".penstock" / "postgres" / "postmaster.pid").exists()


def test_a_database_that_cannot_be_used_is_said_in_one_sentence(tmp_path: Path) -> None:
    """E5"""
    ports = {"ESSAYS_PORT": str(free_port()), "MODEL_PORT": str(free_port())}
    nowhere = {"PENSTOCK_DSN": "postgresql://ana:secret@127.0.0.1:1/essays"}
    everything = Program([str(EXAMPLES / "essays")], {**ports, **nowhere}, tmp_path / "log")
    assert everything.popen.wait(PATIENCE_SECONDS) == 1
    assert "The database at 127.0.0.1:1/essays cannot be reached" in everything.printed
    assert "Traceback" not in everything.printed
    assert "secret" not in everything.printed


def _process(everything: Program, part: str) -> int:
    """The number of the part's latest process, as it was printed."""
    return int(re.findall(rf"The {part} is process (\d+)", everything.printed)[-1])


async def test_an_image_is_known_by_its_content(shop_window: Essays, ana: Person) -> None:
    """E2: a name and a declared type prove nothing."""
    kinds = {
        "image/png": PNG,
        "image/jpeg": JPEG,
        "image/gif": GIF,
        "image/webp": WEBP,
    }
    async with _database(shop_window) as conn:
        for kind, data in kinds.items():
            number = await ana.submit(
                task="academic-task-1", files={"image": ("notes.txt", data, "text/plain")}
            )
            row = await conn.fetchrow(
                "select image, image_type from essays.writing_submissions where id = $1", number
            )
            assert row is not None
            assert tuple(row) == (data, kind)
            shown = await ana.client.get((await ana.status(number))["image"])
            assert (shown.content, shown.headers["content-type"]) == (data, kind)
            assert shown.headers["x-content-type-options"] == "nosniff"
    page = b"<html><script>alert(1)</script></html>"
    for data, sentence in ((page, "PNG, JPEG, WebP or GIF"), (b"", "empty")):
        answer = await ana.save(
            task="academic-task-1", files={"image": ("chart.png", data, "image/png")}
        )
        assert answer.status_code == 422
        assert answer.json()["field"] == "image"
        assert sentence in answer.json()["error"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (PNG[:8] + bytes(64), "this PNG has no size in its header"),
        (PNG[:16] + bytes(8) + PNG[24:], "this PNG has no size in its header"),  # 0 by 0
        (PNG[:20], "this PNG has no size in its header"),
        (PNG[:-8], "this PNG has no end"),
        (JPEG[:6] + bytes(64), "this JPEG has no size in its header"),
        (JPEG[:-2], "this JPEG has no end"),
        (GIF[:6] + bytes(64), "this GIF has no size in its header"),
        (GIF[:-1], "this GIF has no end"),
        (WEBP[:16] + bytes(64), "this WebP has no size in its header"),
        (WEBP[:-2], "this WebP has no end"),
        (GIF[:6] + b"\xff\xff" + GIF[8:], "wider or higher than 20,000 pixels"),
    ],
)
async def test_what_only_begins_like_an_image_is_refused(
    ana: Person, data: bytes, sentence: str
) -> None:
    """E2: the header has to have a size, and the file its end."""
    answer = await ana.save(
        task="academic-task-1", files={"image": ("chart.png", data, "image/png")}
    )
    assert answer.status_code == 422
    assert answer.json()["field"] == "image"
    assert sentence in answer.json()["error"]


async def test_past_essays_are_listed_and_their_images_are_the_owners(
    shop_window: Essays, ana: Person
) -> None:
    """E7, E14: in the page, newest first; an image can be sent again without the file."""
    with_image = await ana.submit(
        task="academic-task-1", files={"image": ("chart.png", PNG, "image/png")}
    )
    again = await ana.submit(task="academic-task-1", image_of=str(with_image))
    status = await ana.status(again)
    assert status["essay"] == ESSAY
    assert status["question"].startswith("Describe the chart")
    assert (await ana.client.get(status["image"])).content == PNG
    page = unescape((await ana.client.get("/practice")).text)
    [known] = re.findall(r'data-known="(\[.*\])"', page)
    listed = json.loads(known)
    assert [one["id"] for one in listed][:2] == [again, with_image]
    assert {one["status"] for one in listed} == {"pending"}
    [completed] = re.findall(r'data-completed="(\[.*\])"', page)
    assert json.loads(completed) == ["academic-task-1"]
    async with browser(shop_window) as other:
        await other.sign_in("Ben images")
        assert (await other.client.get(status["image"])).status_code == 404
        taken = await other.submit(task="academic-task-1", image_of=str(with_image))
        assert (await other.status(taken))["image"] is None
    wrong = await ana.save(task="academic-task-1", image_of="one")
    assert (wrong.status_code, wrong.json()["field"]) == (422, "image_of")


async def test_an_unknown_address_is_a_page_for_people_and_json_for_scripts(ana: Person) -> None:
    """E14: also within Penstock's part, and where only a script may ask."""
    for path in ("/nope", "/static/nope.css", "/penstock/nope", "/sign-out"):
        page = await ana.client.get(path, headers={"Accept": "text/html,*/*"})
        assert page.status_code in (404, 405)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "Page not found" in page.text
        assert "content-security-policy" in page.headers
    for path in ("/nope", "/api/nope"):
        answer = await ana.client.get(path)
        assert (answer.status_code, answer.json()["ok"]) == (404, False)
    answer = await ana.client.get("/api/nope", headers={"Accept": "text/html"})
    assert answer.json()["ok"] is False


@pytest.mark.parametrize("name", ["essays", "feedback", "marking", "scanner", "studio"])
def test_help_is_printed_and_nothing_is_started(name: str, tmp_path: Path) -> None:
    """E5"""
    program = Program([str(EXAMPLES / name), "--help"], {}, tmp_path / "log", cwd=tmp_path)
    assert program.popen.wait(PATIENCE_SECONDS) == 0
    assert program.printed.startswith(f"usage: python examples/{name}")
    assert not (tmp_path / ".penstock").exists()


@pytest.mark.parametrize("megabytes", [5, 30])
async def test_an_image_over_the_limit_is_refused_with_a_sentence(
    shop_window: Essays, ana: Person, megabytes: int
) -> None:
    """E2: a little over, and so much over that the form itself is cut off."""
    data = b"\x89PNG\r\n\x1a\n" + bytes(megabytes * 1024 * 1024)
    answer = await ana.save(
        task="academic-task-1", files={"image": ("chart.png", data, "image/png")}
    )
    assert answer.status_code == 413
    assert answer.json()["field"] == "image"
    assert "5 MB" in answer.json()["error"]
    assert shop_window.programs[0].popen.poll() is None


async def test_every_field_is_checked_and_named(ana: Person) -> None:
    """E1, E14: the answer says which field and what to do; nothing is stored."""
    png = {"image": ("chart.png", PNG, "image/png")}
    cases = [
        ("essay", "empty", await ana.save(essay=" \n ")),
        ("essay", "longer than 20,000", await ana.save(essay="word " * 4_001)),
        ("essay", "NUL", await ana.save(essay="a\0b")),
        ("task", "academic-task-1", await ana.save(task="task-3")),
        ("submission_key", "8 to 64", await ana.save(submission_key="'; drop table --")),
        ("image", "Academic Task 1", await ana.save(files=png)),
        ("id", "id", await ana.client.get("/api/essay-status", params={"id": "one"})),
        ("id", "id", await ana.client.get("/api/essay-status")),
    ]
    for field, words, answer in cases:
        assert answer.status_code == 422, answer.text
        assert answer.json()["ok"] is False
        assert answer.json()["field"] == field
        assert words in answer.json()["error"]
    essay = "Robert'); drop table essays.writing_submissions; --"
    assert (await ana.status(await ana.submit(essay=essay)))["status"] == "pending"


async def test_only_the_owner_reads_a_submission(shop_window: Essays, ana: Person) -> None:
    """E7, E14: others get the same answer as for a number that does not exist."""
    number = await ana.submit()
    assert (await ana.status(number))["id"] == number
    async with browser(shop_window) as other:
        await other.sign_in("Ben")
        foreign = await other.client.get("/api/essay-status", params={"id": number})
        unknown = await other.client.get("/api/essay-status", params={"id": 2**80})
        assert (foreign.status_code, unknown.status_code) == (404, 404)
        assert foreign.json() == unknown.json()


async def test_what_opens_a_job_opens_no_other(shop_window: Essays, ana: Person) -> None:
    """E7, E14: the page gets a token for its own job, and with it nothing else is seen."""
    mine = (await ana.status(await ana.submit()))["job"]
    async with browser(shop_window) as other:
        await other.sign_in("Ben token")
        theirs = (await other.status(await other.submit()))["job"]
        headers = {"Authorization": f"Bearer {theirs['token']}"}
        assert (await other.client.get(theirs["src"], headers=headers)).status_code == 200
        assert (await other.client.get(mine["src"], headers=headers)).status_code == 404
        assert (await other.client.get(mine["src"])).status_code == 401
        answer = await other.client.post(f"{mine['src']}/cancel", headers=headers)
        assert answer.status_code == 404


async def test_nothing_works_without_a_signed_cookie(shop_window: Essays, ana: Person) -> None:
    """E14: no cookie, and one whose name was changed by hand."""
    number = await ana.submit()
    signed = ana.client.cookies["essays_session"]
    forged = "x" + signed[1:]
    async with browser(shop_window) as nobody:
        for cookie in (None, forged, "nonsense", "."):
            nobody.client.cookies.clear()
            if cookie is not None:
                nobody.client.cookies.set("essays_session", cookie)
            assert (await nobody.save()).status_code == 401
            answer = await nobody.client.get("/api/essay-status", params={"id": number})
            assert answer.status_code == 401
            page = await nobody.client.get("/practice")
            assert (page.status_code, page.headers["location"]) == (303, "/sign-in")
        for path in ("/docs", "/openapi.json"):
            assert (await nobody.client.get(path)).status_code == 404


async def test_another_site_cannot_submit_in_somebodys_name(ana: Person) -> None:
    """E14: neither with a form, nor with a script that says where it comes from."""
    form = await ana.client.post("/api/submission-save", data={"essay": ESSAY})
    assert form.status_code == 403
    for path in ("/api/submission-save", "/sign-in", "/sign-out"):
        answer = await ana.client.post(
            path, data={"name": "Eve"}, headers={**HEADERS, "Origin": "https://evil.example"}
        )
        assert answer.status_code == 403


async def test_a_name_on_the_page_is_text(shop_window: Essays) -> None:
    """E14"""
    async with browser(shop_window) as eve:
        await eve.sign_in('"><script>alert(1)</script>')
        page = (await eve.client.get("/practice")).text
        assert "<script>alert" not in page
        wrong = await eve.client.post("/sign-in", data={"name": " "})
        assert wrong.status_code == 422
        assert "The name is empty" in wrong.text


async def test_row_completion_and_job_come_together_or_not_at_all(
    shop_window: Essays, ana: Person
) -> None:
    """E3: the commit itself is refused, after row, completion and submit have all been made."""
    async with _database(shop_window) as conn:
        await conn.execute(
            "create function essays.refuse() returns trigger language plpgsql as"
            " $$ begin raise 'the disk is full'; end $$;"
            " create constraint trigger at_the_end after insert on essays.user_task_completions"
            " deferrable initially deferred for each row execute function essays.refuse()"
        )
        before = await _counts(conn)
        answer = await ana.save()
        assert answer.status_code == 500
        assert await _counts(conn) == before

        await conn.execute("drop function essays.refuse() cascade")
        number = await ana.submit()
        assert await _counts(conn) == tuple(count + 1 for count in before)
        row = await conn.fetchrow(
            "select c.submission_id, penstock.read_job(s.job_id)->>'account' = s.user_name as own"
            " from essays.user_task_completions c"
            " join essays.writing_submissions s on s.id = c.submission_id where s.id = $1",
            number,
        )
        assert row is not None
        assert tuple(row) == (number, True)


async def test_a_double_click_is_one_submission(shop_window: Essays, ana: Person) -> None:
    """E1: two requests at the same moment, and one more later, under one key."""
    async with _database(shop_window) as conn:
        before = await _counts(conn)
        both = await asyncio.gather(*(ana.submit(submission_key="one-click") for _ in range(5)))
        later = await ana.submit(submission_key="one-click")
        assert set(both) == {later}
        assert await _counts(conn) == tuple(count + 1 for count in before)


@asynccontextmanager
async def _database(site: Essays) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(site.env["PENSTOCK_DSN"])
    try:
        yield conn
    finally:
        await conn.close()


async def _counts(conn: asyncpg.Connection) -> tuple[int, int, int]:
    row = await conn.fetchrow(
        "select (select count(*) from essays.writing_submissions),"
        " (select count(*) from essays.user_task_completions), (select count(*) from penstock.job)"
    )
    assert row is not None
    return row[0], row[1], row[2]
