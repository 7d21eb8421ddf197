"""Exceptions that misbehave when they are raised or read: they cost only their attempt."""

import asyncio
from collections.abc import Callable
from typing import NoReturn

import asyncpg
import pytest

from penstock import Job, Penstock, Retries
from penstock.engine.jobs.on_finish import FinishedJob
from support.factory import submit
from support.worker.crew import until_finished, working


class MuteError(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


class LeavesError(Exception):
    """An exception whose text exits the program when it is read."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Text(str):
    __slots__ = ()

    def replace(self, *_: object) -> NoReturn:
        raise RuntimeError

    encode = replace  # type: ignore[assignment]


class DeceivesError(Exception):
    """An exception whose text is of a special class of str."""

    def __str__(self) -> str:
        return Text("text")


class HidesError(Exception):
    """An exception whose missing attributes, comparison and hash raise."""

    def __getattr__(self, name: str) -> NoReturn:
        raise KeyError(name)

    def __eq__(self, other: object) -> NoReturn:
        raise RuntimeError

    def __hash__(self) -> NoReturn:
        raise RuntimeError

    def __reduce__(self) -> NoReturn:
        raise RuntimeError


ODD: dict[str, Callable[[], BaseException]] = {
    "stop iteration": lambda: StopIteration(1),
    "stop async iteration": lambda: StopAsyncIteration(1),
    "generator exit": GeneratorExit,
    "system exit": lambda: SystemExit(3),
    "keyboard interrupt": KeyboardInterrupt,
    "cancelled": asyncio.CancelledError,
    "mute": MuteError,
    "leaves": LeavesError,
    "deceives": DeceivesError,
    "hides": HidesError,
    "group": lambda: BaseExceptionGroup("several", [MuteError(), SystemExit(3)]),
}

ONCE = Retries(attempts=1)


def fail(odd: str) -> NoReturn:
    error = ODD[odd]()
    raise error


def odd_app() -> Penstock:
    app = Penstock(name="odd")
    app.queue("q", retry=ONCE, timeout="30s", stuck_after="1m")

    @app.job(queue="q")
    async def in_loop(odd: str) -> None:
        await asyncio.sleep(0)
        fail(odd)

    @app.job(queue="q")
    def in_thread(odd: str) -> None:
        fail(odd)

    @app.job(queue="q")
    async def in_step(odd: str, job: Job) -> None:
        await job.step("odd", fail, odd)

    @app.job(queue="q")
    def in_step_of_thread(odd: str, job: Job) -> None:
        job.step("odd", fail, odd)

    @app.job(queue="q")
    async def well() -> str:
        return "well"

    return app


@pytest.mark.parametrize("odd", ODD)
async def test_an_odd_exception_costs_its_attempt_only(
    database: str, conn: asyncpg.Connection, odd: str
) -> None:
    """D2: at once, not at the time-out; and the worker goes on."""
    async with working(database, odd_app(), poll=0.1) as here:
        kinds = ("in_loop", "in_thread", "in_step", "in_step_of_thread")
        jobs = [await submit(conn, kind, payload={"odd": odd}) for kind in kinds]
        rows = await until_finished(conn, jobs, seconds=10)
        assert [row["status"] for row in rows] == ["failed"] * 4
        assert {row["error"]["class"] for row in rows} == {"bug"}
        last = await submit(conn, "well")
        [row] = await until_finished(conn, [last])
        assert row["result"] == "well"
        assert not here.task.done()


async def test_the_error_of_an_empty_iterator_is_reported_with_its_line(
    database: str, conn: asyncpg.Connection
) -> None:
    async with working(database, odd_app(), poll=0.1):
        job = await submit(conn, "in_thread", payload={"odd": "stop iteration"})
        [row] = await until_finished(conn, [job])
    assert "StopIteration" in row["error"]["message"]


@pytest.mark.parametrize("odd", ODD)
async def test_an_odd_exception_of_an_on_finish_fails_only_that(
    database: str, conn: asyncpg.Connection, odd: str
) -> None:
    app = odd_app()

    @app.job(queue="q")
    async def paid() -> str:
        return "paid"

    @paid.on_finish
    async def bill(_job: FinishedJob, _conn: asyncpg.Connection) -> None:
        fail(odd)

    async with working(database, app, poll=0.1) as here:
        job = await submit(conn, "paid")
        [row] = await until_finished(conn, [job])
        assert row["error"]["message"].startswith("on_finish: ")
        last = await submit(conn, "well")
        await until_finished(conn, [last])
        assert not here.task.done()


@pytest.mark.parametrize("odd", ODD)
async def test_an_odd_exception_in_classify_classifies_nothing(
    database: str, conn: asyncpg.Connection, odd: str
) -> None:
    app = odd_app()

    @app.classify
    def judge(_error: BaseException) -> NoReturn:
        fail(odd)

    async with working(database, app, poll=0.1):
        jobs = [await submit(conn, "in_loop", payload={"odd": "hides"}), await submit(conn, "well")]
        rows = await until_finished(conn, jobs)
    assert [row["status"] for row in rows] == ["failed", "succeeded"]
