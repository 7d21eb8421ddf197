"""One run: a world, its load, a storm of faults, a quiet phase, and the record to be checked."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import asyncpg

from fire.clients.callbacks import Functions
from fire.clients.http import Caller
from fire.clients.sql import SqlCaller
from fire.clients.wanted import Known
from fire.clients.watching import Watcher
from fire.sampler import Sampler
from fire.weather.forecast import Forecast
from fire.world import SUBMITTER, World
from support.waiting import eventually

SUBMITTERS, SQL_CALLERS, CANCELLERS, WATCHERS = 5, 2, 1, 6
CLIENTS_SECONDS = 90.0

# Unfinished work: jobs, on_finish callbacks that have not run, messages that are not delivered.
_LEFT = """
select (select count(*) from penstock.job) as jobs,
  (select count(*) from penstock.pending_on_finish) as callbacks,
  (select count(*) from penstock.delivery where delivered_at is null) as deliveries
"""
_WAITING = """
select k.name as kind, j.status::text, j.attempt, j.failures, j.crashes, j.run_at - now() as wait,
  j.error
from penstock.job j join penstock.kind k on k.id = j.kind_id limit 8
"""
_STILL = "select * from penstock.check_liveness('5 seconds')"


class Campaign:
    def __init__(self, world: World) -> None:
        self._world = world
        self._known = Known()
        self._stop = asyncio.Event()
        self._over = asyncio.Event()
        self.sampler = Sampler(world.dsn, world.log)
        self.times: dict[str, float] = {}

    async def run(self, forecast: Forecast, seconds: float, quiet_seconds: float) -> None:
        """Run a campaign; raise if work is left after the bound, or a part of the world breaks."""
        async with asyncio.TaskGroup() as beside:
            beside.create_task(self.sampler.run(self._over))
            beside.create_task(Functions(self._world, self._stop, self._over).run())
            try:
                await self._storm(forecast, seconds)
                await self._rest(quiet_seconds)
            finally:
                self._over.set()

    async def _storm(self, forecast: Forecast, seconds: float) -> None:
        """Run load and faults; then end the faults, start all processes, and stop the callers."""
        async with asyncio.TaskGroup() as clients:
            load = [clients.create_task(one) for one in self._load()]
            began = time.monotonic()
            try:
                await forecast.rage(seconds)
                await self._world.calm()
            finally:
                self._stop.set()
            self.times["storm"] = round(time.monotonic() - began, 1)
            self._began_rest = time.monotonic()
            # It answers the requests that it has begun, and stops.
            self._world.gone.add(SUBMITTER)
            await asyncio.to_thread(self._world.children[SUBMITTER].stop)
            await asyncio.wait(load, timeout=CLIENTS_SECONDS)
            late = [task.get_name() for task in load if not task.done()]
            assert not late, f"clients have no answer after {CLIENTS_SECONDS} s: {late}"

    def _load(self) -> list[Any]:
        def caller(name: str) -> Caller:
            return Caller(self._world, name, self._known, self._stop)

        def closing(one: Any, act: Callable[[], Awaitable[None]]) -> Any:
            async def run() -> None:
                try:
                    await act()
                finally:
                    await one.close()

            return run()

        acts: list[Any] = []
        for n in range(SUBMITTERS):
            one = caller(f"h{n}")
            acts.append(closing(one, one.submit))
        for n in range(SQL_CALLERS):
            sql = SqlCaller(self._world, f"s{n}", self._known, self._stop)
            acts.append(closing(sql, sql.submit))
        for n in range(CANCELLERS):
            one = caller(f"c{n}")
            acts.append(closing(one, one.cancel))
        batches, retries, payer = caller("b"), caller("r"), caller("p")
        acts.append(closing(batches, batches.submit_batches))
        acts.append(closing(retries, retries.retry))
        acts.append(closing(payer, payer.pay))
        acts.extend(
            Watcher(self._world, f"v{n}", self._known, self._stop).watch() for n in range(WATCHERS)
        )
        return acts

    async def _rest(self, seconds: float) -> None:
        """Wait until all work is finished within the bound, including postponed messages."""
        conn = await self._world.connect()
        try:
            left: Mapping[str, Any] = {}

            async def nothing_left() -> bool:
                nonlocal left
                row = await conn.fetchrow(_LEFT)
                assert row
                left = dict(row)
                if left["deliveries"]:
                    await self._replay(conn)
                return not any(left.values())

            try:
                await eventually(nothing_left, "nothing is left", seconds=seconds, poll=0.25)
            except AssertionError as error:
                waiting = [dict(row) for row in await conn.fetch(_WAITING)]
                still = [dict(row) for row in await conn.fetch(_STILL)]
                raise AssertionError(
                    f"{error}: {left}; among them {waiting}; this stands still: {still}"
                ) from None
        finally:
            with suppress(OSError):
                await conn.close()
        self.times["rest"] = round(time.monotonic() - self._began_rest, 1)

    async def _replay(self, conn: asyncpg.Connection) -> None:
        """Retry messages that failed during the receiver's fault, which would wait for hours."""
        await conn.execute(
            "select penstock.replay_delivery(id) from penstock.delivery"
            " where delivered_at is null and (next_at is null or next_at > now() + '3 seconds')"
            " and sending_until is null"
        )
