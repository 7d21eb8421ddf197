"""Measures how the demo recovers from a process that exited, and reports it as sentences."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

from demo.children import Child, End
from demo.readings import DATABASE_UNAVAILABLE, LostJob, Readings
from demo.story import Line, Story

POLL_SECONDS = 0.1
# A job that has lost several workers waits a minute before the next one gets it.
LONGEST_SECONDS = 90.0
# People may leave the model stopped; after a while it is polled less often, and then not at all.
SELDOM_SECONDS, LONGEST_OUTAGE_SECONDS = 2.0, 3 * 3_600.0
# A job should run within this time after the model answers again, if any job waits.
FIRST_SECONDS = 30.0


class Healing:
    """One watcher for each part. A part that exits again during its outage makes no new outage.

    `answers_model`, `answers_sites`: whether they accept calls now.
    """

    def __init__(
        self,
        story: Story,
        readings: Readings,
        *,
        answers_model: Callable[[], Awaitable[bool]],
        answers_sites: Callable[[], Awaitable[bool]],
    ) -> None:
        self._story = story
        self._readings = readings
        self._answers_model = answers_model
        self._answers_sites = answers_sites
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._is_model_unavailable = False

    def worker_exited(self, end: End, worker: Child) -> None:
        self._watch("worker", self._worker(end, worker))

    def model_exited(self, end: End, model: Child) -> None:
        if not (self._is_watched("model") and self._is_model_unavailable):
            self._is_model_unavailable = True
            self._watch("model", self._model(end, model))

    def sites_exited(self, end: End) -> None:
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
            # If the database is unavailable as well, nothing can be measured.
            with suppress(*DATABASE_UNAVAILABLE):
                await work

        if part in self._watching:
            self._watching[part].cancel()
        self._watching[part] = asyncio.create_task(watched())

    async def _worker(self, end: End, worker: Child) -> None:
        lost_jobs = await self._readings.running()
        how = "killed" if end.code < 0 else "gave_up" if end.code else "left"
        line = self._story.add("worker_lost", pid=end.pid, how=how, owners=len(lost_jobs))
        try:
            if lost_jobs:
                await self._lost_jobs(line, lost_jobs, end.at)
            else:
                await self._stand_by(line, worker, end.at)
        except asyncio.CancelledError:
            # The line of the next loss says what became of the jobs.
            line.become("worker_lost_again", owned=len(lost_jobs))
            raise

    async def _stand_by(self, line: Line, worker: Child, began: float) -> None:
        async def stands_by() -> bool:
            return worker.pid is not None and await self._readings.has_worker(worker.pid)

        healed = await _until(stands_by)
        key = "worker_idle_healed" if healed else "worker_idle_late"
        line.become(key, seconds=time.monotonic() - began)

    async def _lost_jobs(self, line: Line, lost_jobs: list[LostJob], began: float) -> None:
        line.become("worker_lost", owned=len(lost_jobs), all_of_them=len(lost_jobs))
        while True:
            left, finished = await self._readings.without_attempt(lost_jobs)
            if not left:
                break
            if time.monotonic() - began > LONGEST_SECONDS:
                line.become("worker_late", left=left, seconds=LONGEST_SECONDS)
                return
            await asyncio.sleep(POLL_SECONDS)
        key = "worker_healed_partly" if finished else "worker_healed"
        had = len(lost_jobs) - finished
        line.become(key, seconds=time.monotonic() - began, had=had, ended=finished)

    async def _model(self, end: End, model: Child) -> None:
        """Measure from the click on: the ports close then, and the process exits after its work."""
        now = await self._readings.clock()
        moment = now - timedelta(seconds=time.monotonic() - end.at)
        key = "model_stopped" if end.was_asked else "model_lost"
        line = self._story.add(key, pid=end.pid, waits=0, failures=0)
        most = 0
        while not await self._answers_model():
            outage = time.monotonic() - end.at
            waits = await self._readings.waiting()
            most = max(most, waits)
            counts = {"waits": waits, "failures": await self._readings.failed_since(moment)}
            if outage > LONGEST_OUTAGE_SECONDS:
                line.become("model_late", seconds=outage, **counts)
                return
            key = key if model.is_wanted else "model_stopped"
            line.become(key, **counts)
            await asyncio.sleep(POLL_SECONDS if outage < LONGEST_SECONDS else SELDOM_SECONDS)
        self._is_model_unavailable = False
        outage = time.monotonic() - end.at
        line.become(
            "model_back_unused",
            seconds=outage,
            waited=most,
            failures=await self._readings.failed_since(moment),
        )
        answered = await self._readings.clock()
        began = time.monotonic()
        while (first := await self._readings.started_since(answered)) is None:
            if time.monotonic() - began > FIRST_SECONDS:
                break
            await asyncio.sleep(POLL_SECONDS)
        failures = await self._readings.failed_since(moment)
        line.become("model_back_unused", failures=failures)
        if first is not None:
            line.become("model_back", first=(first - answered).total_seconds())

    async def _sites(self, end: End) -> None:
        line = self._story.add("sites_lost", pid=end.pid)
        healed = await _until(self._answers_sites)
        line.become("sites_healed" if healed else "sites_late", seconds=time.monotonic() - end.at)


async def _until(holds: Callable[[], Awaitable[bool]]) -> bool:
    """Poll a condition of another process; return whether it held within LONGEST_SECONDS."""
    until = time.monotonic() + LONGEST_SECONDS
    while not await holds():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True
