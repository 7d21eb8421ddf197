"""Claiming: for each queue a loop that asks for as much as there are free slots, and not more."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from penstock.base.error_place import error_place
from penstock.db.connections.listener import AWAY, back_soon
from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Claimed
from penstock.errors import Conflict
from penstock.worker.claiming.slots import Slots
from penstock.worker.claiming.wakeup import Wake
from penstock.worker.handlers.handler import Handler, Mode
from penstock.worker.membership.registration import Life
from penstock.worker.reporting.outcomes import Ends

# Per claim: 200 to 500 are quickest; 1,000 take so long that nothing overlaps any more.
BATCH = 250
# Ends that wait to be told before no more is claimed.
BACKLOG = 2_000
_ROOM_SECONDS = 0.1

_log = logging.getLogger("penstock.worker")

Begin = Callable[[Claimed, int], None]
Allowance = Callable[[str], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one claim brought. `more`: as much as there was room for, or there was no room."""

    jobs: list[Claimed]
    worker: int
    more: bool


class Claims:
    def __init__(  # noqa: PLR0913  # the parts of a worker that it stands between
        self,
        engine: Engine,
        life: Life,
        ends: Ends,
        slots: Slots,
        handlers: Mapping[str, Handler],
        *,
        modes: Mapping[str, tuple[Mode, ...]],
        most: int | None,
        begin: Begin,
        allowance: Allowance | None = None,
    ) -> None:
        """`modes`: of each queue. `allowance(queue)`: how many a claim may ask for now."""
        self._engine = engine
        self._life = life
        self._ends = ends
        self._slots = slots
        self._handlers = handlers
        self._modes = modes
        self._begin = begin
        self._allowance = allowance
        self._fed = dict.fromkeys(self._modes, False)
        self._open = dict.fromkeys(self._modes, 0)
        self._wakes = {queue: Wake() for queue in self._modes}
        self._stopped = asyncio.Event()
        self._ahead: dict[str, asyncio.Task[_Taken]] = {}
        self._asked: dict[str, float] = {}
        self.left = most
        """How many jobs may still be started; None: as many as come."""

    @property
    def queues(self) -> list[str]:
        return list(self._modes)

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def spent(self) -> bool:
        """No more may be started, and no claim is under way that may bring back less."""
        return self.left == 0 and not self._asked

    @property
    def accepting(self) -> list[str]:
        """Queues of which one more job would be taken now. May be asked from another thread.

        A claim under way holds the slots that it asks for; they are free all the same.
        """
        if self.stopped or self.left == 0 or self._allowance or self._ends.backlog >= BACKLOG:
            return []
        return [
            queue
            for queue, modes in self._modes.items()
            if queue in self._asked or self._slots.least_free(modes) > 0
        ]

    def stop(self) -> None:
        """Claim nothing more. A claim under way ends first: what it took must not be forgotten."""
        self._stopped.set()
        self.wake()

    def wake(self, queue: str | None = None) -> None:
        """There may be work in this queue, or in any."""
        for wake in self._wakes.values() if queue is None else [self._wakes.get(queue)]:
            if wake is not None:
                wake.set()

    @property
    def waited(self) -> float:
        """For how many seconds the longest claim under way has been waiting for its answer."""
        now = asyncio.get_running_loop().time()
        return max((now - asked for asked in self._asked.values()), default=0.0)

    def ended(self, queue: str, jobs: int) -> None:
        """Jobs of this queue have ended: what they held may be what the next one waits for."""
        if queue in self._open:
            self._open[queue] -= jobs
            if self._fed[queue]:
                self._wakes[queue].set()

    def listen(self, queue: str) -> None:
        """Hear what is told from now on; see `rest`."""
        self._wakes[queue].clear()

    async def rest(self, queue: str, seconds: float) -> None:
        """Until there is news of the queue since `listen`, or for so long."""
        await self._wakes[queue].wait(seconds)

    async def serve(self, poll: timedelta) -> None:
        """Until stopped."""
        await asyncio.gather(*(self._serve(queue, poll.total_seconds()) for queue in self._modes))

    async def _serve(self, queue: str, poll_seconds: float) -> None:
        wake = self._wakes[queue]
        tries = 0
        while not self.stopped:
            wake.clear()
            try:
                more = await self.claim(queue)
                tries = 0
            except AWAY as error:
                _log.info("no claim from queue %s: %s", queue, error_place(error))
                tries += 1
                await back_soon(tries)
                continue
            except Exception as error:  # noqa: BLE001  # whatever it is, the worker goes on
                _log.warning("no claim from queue %s: %s", queue, error_place(error))
                more = False
            if not more:
                await wake.wait(poll_seconds * random.uniform(0.8, 1.2))  # noqa: S311  # no secret

    async def claim(self, queue: str, job: UUID | None = None) -> bool:
        """Begin what is due, for the slots that are free; whether there may be more."""
        ahead = self._ahead.pop(queue, None)
        taken = await (ahead or self._take(queue, job))
        if taken.more and job is None and not self.stopped:
            # The next claim is under way while these begin. Two turns of the loop: in the first
            # its task runs, and at the end of that its words go out.
            self._ahead[queue] = asyncio.create_task(self._take(queue))
            for _ in range(2):
                await asyncio.sleep(0)
        self._open[queue] += len(taken.jobs)
        # Found nothing while jobs of ours run: one of them may hold what the next one waits for.
        self._fed[queue] = bool(taken.jobs) or (self._fed[queue] and self._open[queue] > 0)
        for one in taken.jobs:
            self._begin(one, taken.worker)
        return taken.more

    async def finish(self) -> None:
        """Begin what was claimed ahead: who was told to stop gives it back."""
        ahead, self._ahead = self._ahead, {}
        for taken in await asyncio.gather(*ahead.values(), return_exceptions=True):
            if isinstance(taken, _Taken):
                for one in taken.jobs:
                    self._begin(one, taken.worker)
            else:
                _log.info("a last claim brought nothing: %s", error_place(taken))

    async def _take(self, queue: str, job: UUID | None = None) -> "_Taken":
        modes = self._modes[queue]
        most = BATCH if self.left is None else min(BATCH, self.left)
        if self._allowance is not None and most:
            most = min(most, await self._allowance(queue))
            if most == 0:
                return _Taken([], 0, more=False)
        room = self._slots.take(modes, most) if self._ends.backlog < BACKLOG else 0
        if room == 0:
            if self.left != 0:
                await self._room()
            return _Taken([], 0, more=self.left != 0)
        # Before the wait: the loops of several queues share the number.
        self._count(-room)
        jobs: list[Claimed] = []
        worker = 0
        loop = asyncio.get_running_loop()
        self._asked[queue] = loop.time()
        try:
            worker = await self._life.identity(unless=self._stopped)
            if worker == 0:
                return _Taken([], 0, more=False)
            jobs = await self._engine.jobs.claim(worker, queue, room, job=job)
        except Conflict as error:
            if error.code != "worker_lost":
                raise
            self._life.lose(worker)
        finally:
            self._asked.pop(queue, None)
            self._give_rest(modes, room, jobs)
            self._count(room - len(jobs))
        return _Taken(jobs, worker, more=len(jobs) == room)

    def _count(self, n: int) -> None:
        if self.left is not None:
            self.left += n

    def _give_rest(self, modes: Sequence[Mode], room: int, jobs: Sequence[Claimed]) -> None:
        """Slots were taken in every mode of the queue; a job uses one, in its own mode."""
        used = dict.fromkeys(modes, 0)
        for job in jobs:
            mode = self._handlers[job.kind].mode
            if mode in used:
                used[mode] += 1
            else:
                # Its kind was declared in this queue before: its slot was not asked for.
                self._slots.overdraw(mode)
        for mode in modes:
            self._slots.give(mode, room - used[mode])

    async def _room(self) -> None:
        """Wait for a free slot, or for ends to be told; not for ever, when told to stop."""
        try:
            await asyncio.wait_for(self._slots.freed(), _ROOM_SECONDS)
        except TimeoutError:
            return
