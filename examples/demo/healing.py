"""Watches what became of a process that ended, and of its jobs; what it tells is measured."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

from demo.children import Child, End
from demo.looks import DATABASE_UNAVAILABLE, Looks, Orphan
from demo.story import Line, Story

LOOK_SECONDS = 0.1
# A job that has lost several workers waits a minute before the next one gets it.
LONGEST_SECONDS = 90.0
# People may leave the model stopped; after a while one looks less often, and then no more.
SELDOM_SECONDS, LONGEST_AWAY_SECONDS = 2.0, 3 * 3_600.0
# So long after the model's return a job is expected to be at work, if any wants to.
FIRST_SECONDS = 30.0


class Healing:
    """One watcher for each part. What ends again while it is away is still the same outage.

    `answers_model`, `answers_sites`: whether they take calls at this moment.
    """

    def __init__(
        self,
        story: Story,
        looks: Looks,
        *,
        answers_model: Callable[[], Awaitable[bool]],
        answers_sites: Callable[[], Awaitable[bool]],
    ) -> None:
        self._story = story
        self._looks = looks
        self._answers_model = answers_model
        self._answers_sites = answers_sites
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._is_model_away = False

    def worker_ended(self, end: End, worker: Child) -> None:
        self._watch("worker", self._worker(end, worker))

    def model_ended(self, end: End, model: Child) -> None:
        if not (self._is_watched("model") and self._is_model_away):
            self._is_model_away = True
            self._watch("model", self._model(end, model))

    def sites_ended(self, end: End) -> None:
        if not self._is_watched("sites"):
            self._watch("sites", self._sites(end))

    async def close(self) -> None:
        tasks = list(self._watching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_watched(self, part: str) -> bool:
        return part in self._watching and not self._watching[part].done()

    def _watch(self, part: str, work: Coroutine[Any, Any, None]) -> None:
        async def watched() -> None:
            # Where the database goes away as well, there is nothing more to be measured.
            with suppress(*DATABASE_UNAVAILABLE):
                await work

        if part in self._watching:
            self._watching[part].cancel()
        self._watching[part] = asyncio.create_task(watched())

    async def _worker(self, end: End, worker: Child) -> None:
        orphans = await self._looks.running()
        how = "killed" if end.code < 0 else "gave_up" if end.code else "left"
        line = self._story.tell("worker_lost", pid=end.pid, how=how, owners=len(orphans))
        try:
            if orphans:
                await self._orphans(line, orphans, end.at)
            else:
                await self._stand_by(line, worker, end.at)
        except asyncio.CancelledError:
            # The line of its successor says what became of the jobs.
            line.become("worker_lost_again", owned=len(orphans))
            raise

    async def _stand_by(self, line: Line, worker: Child, began: float) -> None:
        async def stands_by() -> bool:
            return worker.pid is not None and await self._looks.has_worker(worker.pid)

        healed = await _until(stands_by)
        key = "worker_idle_healed" if healed else "worker_idle_late"
        line.become(key, seconds=time.monotonic() - began)

    async def _orphans(self, line: Line, orphans: list[Orphan], began: float) -> None:
        line.become("worker_lost", owned=len(orphans), all_of_them=len(orphans))
        while True:
            left, ended = await self._looks.without_start(orphans)
            if not left:
                break
            if time.monotonic() - began > LONGEST_SECONDS:
                line.become("worker_late", left=left, seconds=LONGEST_SECONDS)
                return
            await asyncio.sleep(LOOK_SECONDS)
        key = "worker_healed_partly" if ended else "worker_healed"
        had = len(orphans) - ended
        line.become(key, seconds=time.monotonic() - began, had=had, ended=ended)

    async def _model(self, end: End, model: Child) -> None:
        """From the press on: its doors close then, and the process ends when its work is done."""
        now = await self._looks.clock()
        moment = now - timedelta(seconds=time.monotonic() - end.at)
        key = "model_stopped" if end.was_asked else "model_lost"
        line = self._story.tell(key, pid=end.pid, waits=0, failures=0)
        most = 0
        while not await self._answers_model():
            away = time.monotonic() - end.at
            waits = await self._looks.waiting()
            most = max(most, waits)
            told = {"waits": waits, "failures": await self._looks.failed_since(moment)}
            if away > LONGEST_AWAY_SECONDS:
                line.become("model_late", seconds=away, **told)
                return
            key = key if model.is_wanted else "model_stopped"
            line.become(key, **told)
            await asyncio.sleep(LOOK_SECONDS if away < LONGEST_SECONDS else SELDOM_SECONDS)
        self._is_model_away = False
        away = time.monotonic() - end.at
        line.become(
            "model_back_unused",
            seconds=away,
            waited=most,
            failures=await self._looks.failed_since(moment),
        )
        answered = await self._looks.clock()
        began = time.monotonic()
        while (first := await self._looks.started_since(answered)) is None:
            if time.monotonic() - began > FIRST_SECONDS:
                break
            await asyncio.sleep(LOOK_SECONDS)
        failures = await self._looks.failed_since(moment)
        line.become("model_back_unused", failures=failures)
        if first is not None:
            line.become("model_back", first=(first - answered).total_seconds())

    async def _sites(self, end: End) -> None:
        line = self._story.tell("sites_lost", pid=end.pid)
        healed = await _until(self._answers_sites)
        line.become("sites_healed" if healed else "sites_late", seconds=time.monotonic() - end.at)


async def _until(holds: Callable[[], Awaitable[bool]]) -> bool:
    """Whether it came to hold within the longest time; what is waited for is in another process."""
    until = time.monotonic() + LONGEST_SECONDS
    while not await holds():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True
