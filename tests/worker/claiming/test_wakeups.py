"""Workers notify watchers: after each change at once, in a storm seldom, else never."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from penstock import Job, Penstock
from penstock.engine.queries.events import CHANGE_PAUSE_SECONDS
from penstock.worker.worker import Options, Worker
from support.shapes import Connect
from support.waiting import eventually


class Ears:
    """A session that listens as servers of streams do."""

    def __init__(self) -> None:
        self.heard: list[float] = []

    async def listen(self, conn: asyncpg.Connection) -> None:
        loop = asyncio.get_running_loop()
        await conn.add_listener("penstock_change", lambda *_: self.heard.append(loop.time()))

    def more_than(self, count: int) -> Callable[[], Awaitable[bool]]:
        async def heard() -> bool:
            return len(self.heard) > count

        return heard


@pytest.fixture
async def ears(connect: Connect) -> Ears:
    ears = Ears()
    await ears.listen(await connect())
    return ears


async def test_a_worker_notifies_of_attempts_progress_and_outcomes(
    database: str, ears: Ears
) -> None:
    app = Penstock(database, name="tests")
    app.queue("q")
    goes_on, begun = asyncio.Event(), asyncio.Event()

    @app.job(queue="q")
    async def slow(job: Job) -> None:
        begun.set()
        await goes_on.wait()
        goes_on.clear()
        await job.progress(1, 2)
        await goes_on.wait()

    await slow.submit()
    runs = asyncio.create_task(
        Worker(database, app.handlers(), Options(name="w", until_idle=True)).run()
    )
    await begun.wait()
    for what in ("it began", "it reported progress", "it finished"):
        heard = len(ears.heard) if what != "it began" else 0
        if what != "it began":
            goes_on.set()
        await eventually(ears.more_than(heard), what)
    await runs
    await app.close()


async def test_a_storm_of_outcomes_sends_few_notifications(database: str, ears: Ears) -> None:
    app = Penstock(database, name="tests")
    app.queue("q")

    @app.job(queue="q")
    async def nothing(n: int) -> None: ...

    loop = asyncio.get_running_loop()
    await nothing.submit_many([{"n": n} for n in range(2_000)])
    begun = loop.time()
    await Worker(database, app.handlers(), Options(name="w", until_idle=True)).run()
    took = loop.time() - begun
    await eventually(ears.more_than(0), "a notification")
    assert len(ears.heard) <= took / CHANGE_PAUSE_SECONDS + 2
    await app.close()


async def test_an_idle_worker_sends_no_notifications(database: str, ears: Ears) -> None:
    app = Penstock(database, name="tests")
    app.queue("q")

    @app.job(queue="q")
    async def nothing() -> None: ...

    await app.engine()
    await Worker(database, app.handlers(), Options(name="w", until_idle=True)).run()
    assert not ears.heard
    await app.close()
