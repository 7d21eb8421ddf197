"""The feedback example: turned off and on, rolled back and forth, started by newcomers."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from journeys.feedback_site import FOLDER, Feedback, pupil, running, teacher
from journeys.processes import Program, end_workers, free_port
from journeys.site import PATIENCE_SECONDS
from support.waiting import eventually

pytestmark = pytest.mark.timeout(180)

SWITCHED_OFF = "Die Auswertung ist gerade ausgeschaltet. Deine Abgabe ist gespeichert."


@pytest.fixture(scope="module")
def site(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Feedback]:
    site = Feedback(shared_database, tmp_path_factory.mktemp("feedback"))
    site.env["ENABLE_ASYNC_FEEDBACK"] = "false"
    try:
        for program in (site.start_web(), site.start_model()):
            program.wait_ready()
        yield site
    finally:
        site.end()


@pytest.fixture
def off(site: Feedback) -> Iterator[Feedback]:
    """The app with its queue turned off, and no worker; what a test turns on is turned off."""
    web = _web(site)
    if web is None or site.env["ENABLE_ASYNC_FEEDBACK"] != "false":
        if web:
            web.end()
        site.env["ENABLE_ASYNC_FEEDBACK"] = "false"
        site.start_web().wait_ready()
    yield site
    try:
        site.settle()
    finally:
        end_workers(site.programs)


def _web(site: Feedback) -> Program | None:
    """The web app, if it runs."""
    at_work = (one for one in site.programs if one.port == site.web_port and one.is_running)
    return next(at_work, None)


async def test_with_the_queue_off_a_submit_waits_for_the_answer(
    off: Feedback, shared_conn: asyncpg.Connection
) -> None:
    """F10: as before there was a queue; same row, same limit of one at a time."""
    async with pupil(off) as ada, teacher(off) as board:
        done = await ada.submit()
        assert done["feedback_status"] == "completed"
        assert done["feedback"]
        assert (await board.sees_class())["queue_on"] is False
    assert (await off.report())["most_at_once"] == 1
    job = await shared_conn.fetchrow(
        "select f.status::text, f.attempt from penstock.finished f"
        " join feedback.submission s on s.job_id = f.id where s.id = $1",
        done["id"],
    )
    assert job is not None
    assert tuple(job) == ("succeeded", 1)


async def test_turned_on_again_what_is_queued_drains(off: Feedback) -> None:
    """F10: an outage while it is off keeps the text; a worker has it read later."""
    async with pupil(off, "Ben") as ben:
        async with teacher(off) as board:
            await board.press("ki/anhalten")
            began = time.monotonic()
            kept = await ben.submit()
            # The model is known to be away: nobody waits two minutes for that.
            assert time.monotonic() - began < PATIENCE_SECONDS / 2
            assert kept["feedback_status"] in ("pending", "retry")
            assert kept["retry_count"] == 0
            await board.press("ki/starten")
        web = _web(off)
        assert web
        web.end()
        off.env["ENABLE_ASYNC_FEEDBACK"] = "true"
        off.start_web().wait_ready()
        later = await ben.submit(task="brief")
        assert later["feedback_status"] == "pending"
        off.start_worker()
        await ben.sees(kept["id"], "what was kept is done", feedback_status="completed")
        await ben.sees(later["id"], "and what came later", feedback_status="completed")


async def test_migration_down_with_export_and_up_with_import_keeps_the_jobs(
    migrated: str, tmp_path: Path
) -> None:
    """F10: the queue's schema goes and comes back; rows, places and feedback are as before."""
    with running(migrated, tmp_path) as site:
        file = tmp_path / "jobs.jsonl"
        async with pupil(site) as ada, pupil(site, "Ben") as ben:
            worker = site.start_worker()
            first = await ada.submit()
            await ada.sees(first["id"], "one is done", feedback_status="completed")
            worker.end()
            waiting = [await ben.submit(task=task) for task in ("handys", "blatt", "brief")]
            before = await _rows(migrated)
            assert [row["feedback_status"] for row in before].count("pending") == 3

            assert "wrote 3 live jobs" in site.run(
                "migrate", "down", "--to", "0", "--export", str(file)
            )
            # Without the queue the page still has what it had.
            kept = await ben.look(waiting[0]["id"])
            assert (kept["feedback_status"], kept["message"]) == ("pending", SWITCHED_OFF)
            assert (await ada.look(first["id"]))["feedback"]

            site.run("migrate", "up")
            assert "imported 3 jobs" in site.run("import", str(file))
            assert await _rows(migrated) == before
            site.start_worker("again")
            for one in waiting:
                done = await ben.sees(one["id"], "it is done", feedback_status="completed")
                assert done["retry_count"] == 0
            later = await ada.submit(task="brief")
            await ada.sees(later["id"], "and new ones as well", feedback_status="completed")


async def _rows(dsn: str) -> list[asyncpg.Record]:
    """When what has ended is written down."""
    conn = await asyncpg.connect(dsn)
    try:

        async def settled() -> bool:
            open_ones = "select count(*) from feedback.submission where finished_at is not null"
            return bool(await conn.fetchval(open_ones))

        await eventually(settled, "the end is written down", seconds=PATIENCE_SECONDS)
        return await conn.fetch("select * from feedback.submission order by id")
    finally:
        await conn.close()


async def test_one_command_starts_everything_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    """F1, F6, F11: as a newcomer runs it, in an empty folder: no server, no settings, no set-up."""
    site = Feedback("", tmp_path)
    empty = dict.fromkeys(site.env, "")
    everything = Program(
        [str(FOLDER), "--port", str(site.web_port)],
        {**empty, "MODEL_SECONDS": "0.3", "FEEDBACK_TEACHER_CODE": "only-the-teacher"},
        tmp_path / "everything.log",
        port=site.web_port,
        cwd=tmp_path,
    )
    site.programs.append(everything)

    async def announced() -> bool:
        return f"Meine Aufgaben: http://127.0.0.1:{site.web_port}" in everything.printed

    async def started_again() -> bool:
        return "The worker died" in everything.printed

    try:
        everything.wait_ready()
        await eventually(announced, "the address is printed", seconds=PATIENCE_SECONDS)
        async with pupil(site) as ada, teacher(site) as board:
            first = await ada.submit()
            await ada.sees(first["id"], "the first is read", feedback_status="completed")
            await board.press("ki/anhalten")
            second = await ada.submit(task="brief")
            os.kill(_process(everything, "worker"), signal.SIGKILL)
            await eventually(started_again, "another worker", seconds=PATIENCE_SECONDS)
            await board.press("ki/starten")
            await ada.sees(second["id"], "the second is read", feedback_status="completed")
    finally:
        code = everything.end(signal.SIGINT)
        site.end()
    assert code == 0, everything.printed
    assert everything.printed.endswith("All parts have stopped.\n")
    assert "Traceback" not in everything.printed
    for part in ("model", "worker", "web app"):
        with pytest.raises(ProcessLookupError):
            os.kill(_process(everything, part), 0)
    assert not (tmp_path / ".penstock" / "postgres" / "postmaster.pid").exists()


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("https://models.example.com", "outside of private networks|a public name"),
        ("llama", "it must be simulated, real, or http"),
    ],
)
def test_a_model_outside_of_the_school_is_refused(
    tmp_path: Path, model: str, sentence: str
) -> None:
    """F13: before anything is started."""
    words = [str(FOLDER), "--model", model, "--port", str(free_port())]
    everything = Program(words, {"OLLAMA_URL": ""}, tmp_path / "log", cwd=tmp_path)
    try:
        assert everything.popen.wait(PATIENCE_SECONDS) in (1, 2)
    finally:
        everything.end()
    assert re.search(sentence, everything.printed)
    assert "Traceback" not in everything.printed
    assert "is process" not in everything.printed


def _process(everything: Program, part: str) -> int:
    """The number of the part's latest process, as it was printed."""
    return int(re.findall(rf"The {part} is process (\d+)", everything.printed)[-1])
