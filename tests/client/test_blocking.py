"""Coroutines are called without an event loop, from any thread, and leave nothing behind."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from penstock.client.sync import LoopThread, step
from penstock.db.adapters.caller_connection import blocks
from penstock.engine.engine import Engine
from penstock.engine.jobs.jobs import NewJob
from penstock.engine.states import JobStatus
from penstock.errors import Misconfigured, NotFound
from support.caller_connections import BLOCKING, BORROWERS
from support.db.embedded_uses import quiet_forks


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()
    assert names() == []


def names() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "penstock-sync"]


async def three() -> int:
    await asyncio.sleep(0)
    return 3


def test_a_thread_is_started_by_the_first_call(thread: LoopThread) -> None:
    assert names() == []
    assert thread.run(three()) == 3
    assert thread.run(three()) == 3
    assert thread.running
    assert len(names()) == 1


def test_errors_reach_the_caller(thread: LoopThread) -> None:
    async def fail() -> None:
        raise NotFound("nothing here", code="unknown_job")

    with pytest.raises(NotFound, match="nothing here"):
        thread.run(fail())


def test_the_end_of_the_loop_closes_its_generators(thread: LoopThread) -> None:
    closed: list[str] = []
    kept: list[object] = []

    async def keep() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    async def hold() -> None:
        keeper = keep()
        kept.append(keeper)
        await anext(keeper)

    thread.run(hold())
    thread.close()
    assert closed == ["closed"]
    assert not thread.running
    thread.close()
    assert thread.run(three()) == 3  # another loop


def test_a_call_from_the_loop_itself_is_refused(
    thread: LoopThread,
) -> None:
    async def inside() -> None:
        thread.run(three())

    with pytest.raises(Misconfigured, match="inside a running event loop"):
        thread.run(inside())


def test_a_caller_that_stops_waiting_cancels_the_call(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example by Ctrl-C."""
    started, stopped = threading.Event(), threading.Event()

    async def long() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    start = asyncio.run_coroutine_threadsafe

    def interrupted(*args: object) -> object:
        future: Any = start(*args)  # type: ignore[arg-type]  # passed on

        def result() -> None:
            assert started.wait(5)
            raise KeyboardInterrupt

        monkeypatch.setattr(future, "result", result)
        return future

    thread.run(three())
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread.run(long())
    assert stopped.wait(5)


@quiet_forks
def test_a_forked_child_starts_its_own_loop(thread: LoopThread) -> None:
    thread.run(three())
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if not thread.running and thread.run(three()) == 3 else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert thread.run(three()) == 3


def test_a_step_does_not_wait() -> None:
    async def quick() -> int:
        return 5

    assert step(quick()) == 5
    with pytest.raises(RuntimeError, match="waited for an event loop"):
        step(three())


@pytest.mark.parametrize("driver", BORROWERS)
async def test_connections_that_need_a_loop_are_recognized(database: str, driver: str) -> None:
    async with BORROWERS[driver](database) as app:
        assert blocks(app.conn) is (driver in BLOCKING)
        await app.end(commits=False)


async def test_the_engine_works_on_a_blocking_connection_in_one_step(
    engine: Engine, database: str
) -> None:
    await engine.queues.declare("q")
    await engine.queues.declare_kind("k", "q")
    async with BORROWERS["psycopg"](database) as app:
        submitted = step(engine.jobs.submit(NewJob(kind="k"), conn=app.conn))
        assert submitted.status is JobStatus.QUEUED
        with pytest.raises(NotFound, match="there is no job kind nope"):
            step(engine.jobs.submit(NewJob(kind="nope"), conn=app.conn))
        await app.end(commits=False)
