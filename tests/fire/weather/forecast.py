"""The random schedule of faults from a seed: each as often as required, sometimes two at once."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fire import logs, pgbouncer
from fire.weather import application, database, network, others, processes, sessions
from fire.weather.fault import Fault, Missed
from fire.world import World


@dataclass(frozen=True, slots=True)
class Kind:
    """`plan`: its number in the plan of faults, or the requirement that it tests."""

    run: Fault
    weight: int
    plan: str
    may: bool = True


FAULTS: dict[str, Kind] = {
    "kill_worker": Kind(processes.kill_worker, 10, "R-F1"),
    "pause_worker": Kind(processes.pause_worker, 3, "R-F2"),
    "pause_worker_briefly": Kind(processes.pause_worker_briefly, 3, "R-F3"),
    "kill_api": Kind(processes.kill_api, 6, "R-F4"),
    "stop_api": Kind(processes.stop_api, 2, "R-F4"),
    "kill_postgres": Kind(database.kill_postgres, 6, "R-F5"),
    "kill_backend": Kind(database.kill_backend, 6, "R-F5"),
    "restart_everything": Kind(processes.restart_everything, 2, "R-F6"),
    "cut_off_worker": Kind(network.cut_off_worker, 5, "R-F7"),
    "cut_off_api": Kind(network.cut_off_api, 4, "R-F7"),
    "break_lines": Kind(network.break_lines, 4, "R-F7"),
    "slow_network": Kind(network.slow_network, 3, "R-F7"),
    "slow_disk": Kind(database.slow_disk, 3, "R-F9", database.may_slow()),
    "skewed_worker": Kind(processes.skewed_worker, 2, "R-F10", processes.may_skew()),
    "no_connections": Kind(database.no_connections, 2, "R-F14"),
    "model_unavailable": Kind(others.model_unavailable, 5, "R-F19"),
    "model_storm": Kind(others.model_storm, 6, "R-F20, R-F21"),
    "model_killed": Kind(others.model_killed, 3, "R-F19"),
    "receiver_faults": Kind(others.receiver_faults, 5, "R-F22"),
    "model_half_up": Kind(others.model_half_up, 3, "D4"),
    "blocking_handlers": Kind(application.blocking_handlers, 3, "D2"),
    "removed_kinds": Kind(application.removed_kinds, 3, "D1"),
    "odd_exceptions": Kind(application.odd_exceptions, 2, "D2"),
    "odd_settings": Kind(sessions.odd_settings, 3, "D3"),
    "kill_pooler": Kind(network.kill_pooler, 2, "R-F7", pgbouncer.PROGRAM is not None),
    "deaf": Kind(database.deaf, 3, "R-F24"),
    "long_transaction": Kind(database.long_transaction, 3, "R-F25"),
    "lock_storm": Kind(database.lock_storm, 5, "R-F26"),
    "drain_worker": Kind(processes.drain_worker, 3, "R-F1"),
    "edit_limits": Kind(others.edit_limits, 4, "R-F26"),
    "pause_queue": Kind(others.pause_queue, 3, "R-F26"),
}
POSSIBLE = {name: kind for name, kind in FAULTS.items() if kind.may}
IMPOSSIBLE = [name for name, kind in FAULTS.items() if not kind.may]

# The faults of a short storm, each once.
SHORT = (
    "kill_worker",
    "kill_api",
    "kill_postgres",
    "model_unavailable",
    "receiver_faults",
    "cut_off_worker",
)
TOGETHER = 0.4
AT_ONCE = 3
PAUSE = (0.1, 0.9)
# Between two faults, at most. In a short storm: as long as each has if they are spread evenly.
PAUSE_SECONDS = 4.0
END_SECONDS = 120.0
TRIES = 10
RETRY_SECONDS = 0.5


class Forecast:
    def __init__(self, world: World, must: Counter[str], only: Sequence[str] | None = None) -> None:
        """`must`: how often each must come. `only`: these faults; empty: all possible ones."""
        self._choice = {name: POSSIBLE[name] for name in only or POSSIBLE}
        self._world = world
        self._chance = world.chance("weather")
        self._must = must
        self._first: list[str] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._number = 0
        self.seen: Counter[str] = Counter()

    async def rage(self, seconds: float) -> None:
        """Run for so long; return after the end of the last fault."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        self._first = list(self._must.elements())
        self._chance.shuffle(self._first)
        pause = seconds / max(1, len(self._first)) if self._world.brief else PAUSE_SECONDS
        while loop.time() < ends:
            await asyncio.sleep(pause * self._chance.uniform(*PAUSE))
            self._begin(self._next())
            alone = self._chance.random() > TOGETHER and not self._world.brief
            while len(self._under_way) >= (1 if alone else AT_ONCE) and loop.time() < ends:
                await asyncio.wait(
                    self._under_way,
                    return_when=asyncio.FIRST_COMPLETED,
                    timeout=max(0.0, ends - loop.time()),
                )
                self._raise()
        async with asyncio.timeout(END_SECONDS):
            await asyncio.gather(*self._under_way)
        for name in list(self._first):  # faults for which there was no time or no victim
            async with asyncio.timeout(END_SECONDS):
                await self._begin(name)

    def _next(self) -> str:
        if self._first:
            return self._first.pop()
        weights = [kind.weight for kind in self._choice.values()]
        return self._chance.choices(list(self._choice), weights)[0]

    def _begin(self, name: str) -> asyncio.Task[None]:
        self._number += 1
        chance = random.Random(f"{self._world.seed} {name} {self._number}")
        run = self._run(name, f"f{self._number}", chance)
        task = asyncio.get_running_loop().create_task(run, name=name)
        self._under_way.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._under_way.discard(task)

    def _raise(self) -> None:
        for task in self._under_way:
            if task.done():
                task.result()

    async def _run(self, name: str, number: str, chance: random.Random) -> None:
        begun = False

        def began(**what: Any) -> None:
            nonlocal begun
            begun = True
            self.seen[name] += 1
            self._write(name, number, "begin", what)

        for _ in range(TRIES):
            try:
                await POSSIBLE[name].run(self._world, chance, began)
                break
            except Missed:
                await asyncio.sleep(RETRY_SECONDS)
        if begun:
            self._write(name, number, "end", {})
        elif self._must[name] > self.seen[name] + self._first.count(name):
            self._first.insert(0, name)

    def _write(self, name: str, number: str, word: Any, what: dict[str, Any]) -> None:
        self._world.log.write(logs.Fault(fault=name, id=number, word=word, what=what))
