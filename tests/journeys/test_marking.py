"""Journeys through the marking example: a function marks a class, whatever dies meanwhile."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from journeys.marking_site import (
    CLASS,
    CODE,
    FOLDER,
    QUEUE_SECRET,
    Marking,
    assert_each_marked_once,
    running,
    teacher,
)
from journeys.processes import Program
from journeys.site import PATIENCE_SECONDS
from support.waiting import eventually

pytestmark = pytest.mark.timeout(150)

# Minutes of the real settings as seconds.
SOON = {"timeout": '"4s"', "retry": '{ attempts = 3, backoff = "linear", delay = 0.2 }'}


CORRECT = "/api/assignments/a2/correct"


@pytest.fixture(scope="module")
def site(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Marking]:
    folder = tmp_path_factory.mktemp("marking")
    with running(shared_database, folder, settings=SOON) as site:
        yield site


@pytest.fixture
def marking(site: Marking) -> Iterator[Marking]:
    """Web app and function, the same for all tests; no two mark the same answers."""
    site.settle()
    yield site
    site.settle()


@pytest.fixture
def unhurried(database: str, tmp_path: Path) -> Iterator[Marking]:
    """With the example's own settings."""
    with running(database, tmp_path) as site:
        yield site


async def test_mark_all_marks_thirty_one_at_a_time(
    unhurried: Marking, conn: asyncpg.Connection
) -> None:
    """M1, M3, M5 to M9, M15: clicked twice, called back twice; each is told as it comes."""
    marking = unhurried
    await marking.order(repeat=2)
    async with teacher(marking) as ana, ana.listening() as events:
        both = await asyncio.gather(ana.mark(), ana.mark())
        assert sorted((one["asked"], one["found"]) for one in both) == [(0, CLASS), (CLASS, 0)]
        assert both[0]["totals"]["pending"] == CLASS
        now = await ana.ask("/api/ai-queue")
        assert (now["pending"], now["processing"], now["failed_today"]) == (CLASS, 0, 0)
        assert now["avg_processing_seconds"] is None
        marking.start_worker("one")
        marking.start_worker("two")
        succeeded: set[str] = set()
        handed_over: set[str] = set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for job in events:
                if job["status"] == "awaiting":
                    handed_over.add(job["id"])
                if job["status"] == "succeeded":
                    succeeded.add(job["id"])
                    if len(succeeded) == CLASS:
                        break
        assert handed_over
        done = await ana.sees("all are marked", marked=CLASS)
        for one in done["answers"]:
            assert 0 <= one["score"] <= one["out_of"] == 4
            assert one["feedback"]
        await _until_written(conn)
        now = await ana.ask("/api/ai-queue")
        assert (now["pending"], now["processing"], len(now["jobs"])) == (0, 0, CLASS)
        assert 0.05 < now["avg_processing_seconds"] < 10

        async def all_told() -> bool:
            return len(marking.events("told")) == 2 * CLASS

        await eventually(all_told, "every result has been sent twice", seconds=PATIENCE_SECONDS)
    outcomes = [one["outcome"] for one in marking.events("told")]
    assert (outcomes.count("accepted"), outcomes.count("duplicate")) == (CLASS, CLASS)
    assert len(marking.events("begin")) == CLASS
    await assert_each_marked_once(conn, marking)


async def test_nothing_is_lost_when_worker_and_function_die(
    marking: Marking, shared_conn: asyncpg.Connection
) -> None:
    """M2, M3, M4, M11: no job fails, and no answer is marked twice."""
    # There is something left to do when the last of them dies.
    await marking.order(seconds=0.4)
    worker = marking.start_worker("one")
    async with teacher(marking) as ana:
        await ana.mark()
        await ana.sees("some are marked", marked=4)
        # What is handed over needs no worker: the callback finds its way.
        worker.kill()
        worker = marking.start_worker("two")
        await ana.sees("it goes on", marked=8)

        # A function that takes no calls costs nobody an attempt.
        await marking.command("/_stop")
        await ana.sees_answer("Zeno", "it is waited for", status="pending")
        away = "The marking function does not answer at the moment; it goes on by itself."

        async def said() -> bool:
            rows = (await ana.look())["answers"]
            return any(one["message"].endswith(away) for one in rows)

        await eventually(said, "it is said", seconds=PATIENCE_SECONDS)
        assert (await ana.ask("/api/ai-queue"))["function"] == {"there": False, "switch": True}
        await marking.command("/_start")
        await ana.sees("it goes on", marked=12)

        # What it had in hand when it died is asked for again, after the time it had.
        _function(marking).kill()
        marking.start_function().wait_ready()
        await ana.sees("it goes on", marked=16)
        worker.kill()
        marking.start_worker("three")
        await ana.sees("all are marked", marked=CLASS)
        await _until_written(shared_conn)
    await assert_each_marked_once(shared_conn, marking)


def _function(site: Marking) -> Program:
    [found] = [one for one in site.programs if "marking.function" in one.words and one.is_running]
    return found


async def test_what_fails_says_why_and_can_be_retried(
    marking: Marking, shared_conn: asyncpg.Connection
) -> None:
    """M10, M11, M15: for good, or after three attempts, or when no callback came; once each."""
    said = "The model could not make sense of this answer."
    marking.start_worker()
    async with teacher(marking) as ana:
        await marking.order(fail=1)
        await ana.mark("Ada", "a2")
        failed = await ana.sees_answer("Ada", "it failed", "a2", status="failed", message=said)
        assert failed["attempt"] == 1

        await marking.order(fail=3, retryable=True)
        await ana.mark("Bea", "a2")
        assert (await ana.sees_answer("Bea", "it failed", "a2", status="failed"))["attempt"] == 3

        now = await ana.ask("/api/ai-queue")
        assert now["failed_today"] == 2
        jobs = [one for one in now["jobs"] if one["assignment"] == "a2"]
        assert [one["may_retry"] for one in jobs] == [True, True]
        assert {one["error"]["message"] for one in jobs} == {said}
        old = jobs[1]
        assert (old["pupil"], old["status"]) == ("Ada", "failed")

        both = await asyncio.gather(*(ana.press(f"/api/ai-queue/{old['id']}/retry") for _ in "12"))
        assert {one.status_code for one in both} == {200}
        [new] = {one.json()["job_id"] for one in both}
        await ana.sees_answer("Ada", "it is marked", "a2", status="marked", job_id=new)
        # From the class's own page, where it stands beside the answer.
        await ana.mark("Bea", "a2")
        await ana.sees_answer("Bea", "it is marked", "a2", status="marked")
        now = await ana.ask("/api/ai-queue")
        assert not any(one["may_retry"] for one in now["jobs"])
        assert (
            await shared_conn.fetchval("select penstock.read_job($1) ->> 'retry_of'", UUID(new))
            == (old["id"])
        )

        # What was sent is not always a mark.
        await marking.order(odd=1)
        await ana.mark("Dara", "a2")
        said = "The function sent something that is no mark."
        await ana.sees_answer("Dara", "it is no mark", "a2", status="failed", message=said)
        await ana.mark("Dara", "a2")
        await ana.sees_answer("Dara", "it is marked", "a2", status="marked")

        # One that never calls back is handed over again.
        await marking.order(silent=1)
        await ana.mark("Cem", "a2")
        marked = await ana.sees_answer("Cem", "it is marked", "a2", status="marked")
        found = await shared_conn.fetchrow(
            "select f.attempt, a.error ->> 'class' as class from penstock.finished f"
            " join penstock.attempt a on a.job_id = f.id where f.id = $1",
            UUID(marked["job_id"]),
        )
        assert found is not None
        assert tuple(found) == (2, "no_callback")
    assert await shared_conn.fetch("select * from penstock.check()") == []
    assert marking.most_at_once() == 1


async def test_a_mark_by_hand_stays_whatever_the_function_says(marking: Marking) -> None:
    """M9: of an answer whose mark is on its way, and of one that is marked."""
    await marking.order(seconds=1)
    marking.start_worker()
    before = len(marking.events("told"))
    async with teacher(marking) as ana:
        await ana.mark("Gwen", "a2")
        gwen = await ana.sees_answer("Gwen", "it is on its way", "a2", status="marking")
        by_hand = {"submission_id": gwen["id"], "score": 4, "feedback": "Said in class."}
        for field, wrong in (
            ("score", {"score": 5}),
            ("score", {"score": -1}),
            ("score", {"score": 2.5}),
            ("score", {"score": None}),
            ("feedback", {"feedback": "x" * 2_001}),
            ("feedback", {"feedback": "a\0b"}),
            ("submission_id", {"submission_id": "one"}),
        ):
            refused = await ana.press(CORRECT, **{**by_hand, **wrong})
            assert (refused.status_code, refused.json()["field"]) == (422, field), refused.text
        elsewhere = await ana.press("/api/assignments/a1/correct", **by_hand)
        assert elsewhere.status_code == 404
        assert (await ana.press(CORRECT, **by_hand)).status_code == 200

        # Marked after it, one at a time: by then the function has told its mark of the first.
        await ana.mark("Hana", "a2")
        hana = await ana.sees_answer("Hana", "marked", "a2", status="marked", corrected=False)
        assert len(marking.events("told")) == before + 2
        wanted: dict[str, Any] = {"score": 4, "out_of": 4, "feedback": "Said in class."}
        await ana.sees_answer("Gwen", "it stays", "a2", status="marked", corrected=True, **wanted)
        await ana.press(CORRECT, submission_id=hana["id"], score=0)
        await ana.sees_answer("Hana", "no points", "a2", score=0, feedback="", corrected=True)


async def test_a_forged_callback_changes_nothing(
    marking: Marking, shared_conn: asyncpg.Connection
) -> None:
    """M13: without its token, with another one's, with one that was made up."""
    begun = len(marking.events("begin"))
    await marking.order(seconds=2)
    marking.start_worker()
    async with teacher(marking) as ana:
        await ana.mark("Elio", "a2")
        job = (await ana.sees_answer("Elio", "it is handed over", "a2", status="marking"))["job_id"]
        await ana.mark("Esra", "a2")
        other = (await ana.answer_of("Esra", "a2"))["job_id"]
        result = {"score": 4, "out_of": 4, "feedback": "Perfect, says the pupil."}
        item = {"job_id": job, "status": "succeeded", "result": result}
        forged = f"1.{'A' * 43}"
        for body, headers in (
            ([item], {}),
            ([{**item, "token": forged}], {}),
            (item, {"Authorization": f"Bearer {forged}"}),
            (item, {"Authorization": f"Bearer {QUEUE_SECRET}"}),
            ([{**item, "job_id": other, "token": forged}], {}),
        ):
            for path in (f"/v1/callbacks/{job}", "/v1/callbacks"):
                told = await ana.client.post(path, json=body, headers=headers)
                assert told.status_code in (401, 422), (path, body, told.text)
        marked = await ana.sees_answer("Elio", "it is marked", "a2", status="marked")
        assert marked["feedback"] != result["feedback"]
        await ana.sees_answer("Esra", "it is marked", "a2", status="marked")
        # And to the function nobody speaks but us.
        async with httpx.AsyncClient(trust_env=False) as client:
            work = {**item, "attempt": 1, "callback_url": "http://127.0.0.1:1/", "token": forged}
            told = await client.post(marking.env["MARKING_FUNCTION_URL"], json=work)
            assert told.status_code == 401
    assert len(marking.events("begin")) == begun + 2
    mark = "select feedback from marking.submission where job_ids @> array[$1::text::uuid]"

    async def written() -> bool:
        return await shared_conn.fetchval(mark, job) is not None

    await eventually(written, "the mark is in the app's table", seconds=PATIENCE_SECONDS)
    assert await shared_conn.fetchval(mark, job) == marked["feedback"]


async def test_http_alone_drives_the_queue(
    database: str, tmp_path: Path, conn: asyncpg.Connection
) -> None:
    """M12, M13: no worker; the submit begins, callbacks go on, and a lost chain is found again."""
    with running(database, tmp_path, drive="http", settings=SOON) as site:
        async with teacher(site) as ana:
            await site.order(repeat=2)
            await asyncio.gather(ana.mark(), ana.mark())
            await ana.sees("some are marked", marked=5)
            # The chain dies with its server, in the middle of whatever it does.
            [web] = [one for one in site.programs if "marking.app:web" in one.words]
            web.kill()
            site.start_web().wait_ready()
            for said in ({}, {"Authorization": "Bearer nonsense"}):
                refused = await ana.client.post("/api/marking/process-queue", headers=said)
                assert refused.status_code == 401, refused.text
            clock = {"Authorization": f"Bearer {QUEUE_SECRET}"}
            told = await ana.client.post("/api/marking/process-queue", headers=clock)
            assert told.status_code == 200, told.text
            assert {"processed", "remaining", "chained"} <= set(told.json())
            await ana.sees("all are marked", marked=CLASS)
            await _until_written(conn)
            # The table knows nobody but calls.
            names = await conn.fetch("select distinct name from penstock.worker")
            assert all(row["name"].endswith("process") for row in names), names
        await assert_each_marked_once(conn, site)


async def _until_written(conn: asyncpg.Connection) -> None:
    async def written() -> bool:
        found = await conn.fetchval(
            "select count(score) from marking.submission where assignment_id = 'a1'"
        )
        return bool(found == CLASS)

    await eventually(written, "all marks are in the app's table", seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("drive", ["worker", "http"])
async def test_one_command_starts_everything_and_ctrl_c_ends_it(tmp_path: Path, drive: str) -> None:
    """As a newcomer runs it, in an empty folder: no server, no settings, no set-up."""
    site = Marking("", tmp_path)
    everything = Program(
        [str(FOLDER), "--port", str(site.web_port)],
        {
            **dict.fromkeys(site.env, ""),
            "FUNCTION_SECONDS": "0.05",
            "MARKING_TEACHER_CODE": CODE,
            "MARKING_DRIVE": drive,
        },
        tmp_path / "everything.log",
        port=site.web_port,
        cwd=tmp_path,
    )
    site.programs.append(everything)

    async def announced() -> bool:
        return f"http://127.0.0.1:{site.web_port}/sign-in?code={CODE}" in everything.printed

    try:
        everything.wait_ready()
        await eventually(announced, "the address is printed", seconds=PATIENCE_SECONDS)
        async with teacher(site) as ana:
            for pupil in ("Ada", "Bea", "Cem"):
                assert (await ana.mark(pupil))["asked"] == 1
            await ana.sees("all are marked", marked=3)
            assert (await ana.press("/api/function/fail")).json()["there"] is True
            await ana.mark("Ada", "a2")
            await ana.sees("one has failed", "a2", failed=1)
            [failed] = [one for one in (await ana.ask("/api/ai-queue"))["jobs"] if one["may_retry"]]
            await ana.press(f"/api/ai-queue/{failed['id']}/retry")
            await ana.sees("it is marked", "a2", marked=1)
            # A page that is open holds nothing up.
            async with ana.listening():
                everything.end(signal.SIGINT)
    finally:
        code = everything.end(signal.SIGINT)
        site.end()
    assert code == 0, everything.printed
    assert everything.printed.endswith("All parts have stopped.\n")
    assert "ERROR" not in everything.printed
    assert ("The worker is process" in everything.printed) == (drive == "worker")
    for number in re.findall(r"is process (\d+)", everything.printed):
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)
