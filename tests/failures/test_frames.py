"""Frames of a handler's error: in the log and with the attempt, for operators, without values."""

import json
import logging
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock import Penstock, Retries
from penstock.engine.jobs.on_finish import FinishedJob
from penstock.failures.frames import MOST, frames_of
from support.factory import call_back, claim, hand_over, queue, read, submit, worker
from support.worker.crew import until_finished, working

PUPIL = "Ben wrote: my dog is ill"
HERE = __file__
SIGN = "a token of some length"


def parse(text: str) -> Any:
    return json.loads(text)


def deeper(n: int) -> int:
    return deeper(n - 1) if n else 1 // n


def failing_app() -> Penstock:
    app = Penstock(name="failing")
    app.queue("q", retry=Retries(attempts=1), timeout="30s")

    @app.job(queue="q")
    async def in_loop(text: str) -> Any:
        return parse(text)

    @app.job(queue="q")
    def in_thread(text: str) -> Any:
        raise ValueError(text)

    return app


async def attempts(conn: asyncpg.Connection, job: UUID) -> Any:
    return (await conn.fetchval("select penstock.read_job($1)", job))["attempts"]


def caught(function: Any, *args: Any) -> Exception:
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001  # whatever the test wants to look at
        return error
    raise AssertionError


def test_the_users_own_frames_come_first_and_innermost_first() -> None:
    frames = frames_of(caught(parse, "{"))
    assert frames[0].startswith(f"{HERE}:")
    assert frames[0].endswith(" in parse")
    assert frames[1].endswith(" in caught")
    assert "json/decoder.py:" in frames[2]
    assert frames[2].endswith(" in JSONDecoder.raw_decode")


def test_a_recursion_is_shortened_and_a_group_has_the_frames_of_its_first_error() -> None:
    assert len(frames_of(caught(deeper, 500))) == 2, "a line once, and its caller"

    def together() -> None:
        raise ExceptionGroup("several", [caught(parse, "{"), ValueError()])

    assert any(frame.endswith(" in parse") for frame in frames_of(caught(together)))


def test_frames_are_bounded() -> None:
    program = "\n".join(f"def f{n}(): f{n + 1}()" for n in range(50)) + "\ndef f50(): 1 / 0"
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102  # fifty functions
    assert len(frames_of(caught(names["f0"]))) == MOST


@pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
async def test_frames_are_logged_and_kept_and_the_message_is_in_no_log(
    database: str, conn: asyncpg.Connection, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """F8"""
    caplog.set_level(logging.DEBUG)
    async with working(database, failing_app(), poll=0.1):
        job = await submit(conn, kind, payload={"text": PUPIL})
        await until_finished(conn, [job])
    [attempt] = await attempts(conn, job)
    assert attempt["frames"][0].startswith(f"{HERE}:")
    [line] = [one for one in caplog.messages if "a handler failed" in one]
    for frame in attempt["frames"]:
        assert frame in line
    assert PUPIL not in caplog.text
    assert "Ben" not in "".join(attempt["frames"])
    assert "Error: " in attempt["message"], "the message is with the attempt"


@pytest.mark.parametrize("tracebacks", [True, False])
async def test_a_failing_on_finish_callback_has_its_frames_too(
    database: str, conn: asyncpg.Connection, caplog: pytest.LogCaptureFixture, *, tracebacks: bool
) -> None:
    app = failing_app()

    @app.job(queue="q")
    async def paid() -> str:
        return "paid"

    @paid.on_finish
    async def bill(_job: FinishedJob, _conn: asyncpg.Connection) -> None:
        parse(PUPIL)

    async with working(database, app, poll=0.1, tracebacks=tracebacks):
        job = await submit(conn, "paid")
        await until_finished(conn, [job])
    [attempt] = await attempts(conn, job)
    assert any(frame.endswith(".bill") for frame in attempt["frames"]) is tracebacks
    assert (".bill" in caplog.text) is tracebacks
    assert PUPIL not in caplog.text


async def test_no_frames_are_kept_if_the_setting_forbids_it(
    database: str, conn: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(database, failing_app(), poll=0.1, tracebacks=False):
        job = await submit(conn, "in_loop", payload={"text": PUPIL})
        await until_finished(conn, [job])
    assert "frames" not in await conn.fetchval("select error from penstock.finished")
    assert [one["frames"] for one in await attempts(conn, job)] == [[]]
    assert " in parse" not in caplog.text
    assert "a handler failed: JSONDecodeError" in caplog.text


async def test_customers_see_no_frames(database: str, conn: asyncpg.Connection) -> None:
    """Neither in the job's error nor with its attempts; and no error of a job shows them."""
    async with working(database, failing_app(), poll=0.1):
        job = await submit(conn, "in_loop", payload={"text": PUPIL})
        await until_finished(conn, [job])
    whole = await conn.fetchval("select penstock.read_job($1)", job)
    assert "frames" not in whole["error"]
    assert whole["attempts"][0]["frames"]
    public = await conn.fetchval("select penstock._public_job($1)", whole)
    assert public["attempts"][0]["frames"] == []
    assert HERE not in json.dumps(public)


async def test_a_callback_reports_no_frames(conn: asyncpg.Connection) -> None:
    await queue(conn)
    job = await submit(conn)
    [start] = await claim(conn, caller := await worker(conn))
    await hand_over(conn, caller, start, SIGN)
    error = {"class": "bug", "message": "no", "frames": ["/etc/passwd:1 in x"]}
    await call_back(conn, job, start["attempt"], SIGN, "retry", error=error)
    [attempt] = (await read(conn, job))["attempts"]
    assert attempt["frames"] == []
