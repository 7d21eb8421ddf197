"""Offers: a worker that runs nothing says so, and gets the next job from its submit (offers.sql).

A slot of each sort is kept for it: what comes that way never exceeds what the worker may run.
"""

import asyncio
import json
import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from penstock.engine import Engine
from penstock.engine.starts import Claimed, read_start
from penstock.errors import Misconfigured
from penstock.worker.handlers import Handler, Mode
from penstock.worker.life import Life
from penstock.worker.outcomes import whereabouts
from penstock.worker.slots import Slots
from penstock.worker.wake import Wake

# A word that comes later after the last offer than one can be taken finds us frozen meanwhile.
FRESH_SECONDS = 4.0
RIGHTS_SECONDS = 60.0
# A submit that takes the offer of a worker that leaves may be waiting for its disk.
BUSY_SECONDS = 0.05
END_SECONDS = 4.0
# So many starts are remembered: one is told twice within seconds, or not at all.
_REMEMBERED = 100

_log = logging.getLogger("penstock.worker")


class Offers:
    def __init__(  # noqa: PLR0913  # the parts of a worker that it stands between
        self,
        engine: Engine,
        life: Life,
        slots: Slots,
        handlers: Mapping[str, Handler],
        modes: Mapping[str, Sequence[Mode]],
        *,
        poll: timedelta,
        idle: Callable[[], bool],
        begin: Callable[[Claimed, int], None],
    ) -> None:
        """`modes`: of each queue. `idle()`: whether the worker runs nothing.

        `begin(start, worker)`: with a slot that was kept for it.
        """
        self._engine = engine
        self._life = life
        self._slots = slots
        self._handlers = handlers
        self._queues = list(modes)
        self._poll_seconds = poll.total_seconds()
        self._idle = idle
        self._begin = begin
        self._modes = sorted({mode for of_queue in modes.values() for mode in of_queue})
        self._loop = asyncio.get_running_loop()
        self._wake = Wake()
        self._turn = asyncio.Lock()
        self._said = 0.0
        self._asked: float | None = None
        self._complains = logging.WARNING
        self._begun: deque[tuple[UUID, int]] = deque(maxlen=_REMEMBERED)
        self.channel = f"penstock_start_{secrets.token_hex(16)}"
        """Who knows it can hear what we are given: told to the database only, and never logged."""
        self.stands = False
        """An offer may be there, and slots are kept for it."""

    @property
    def waited(self) -> float:
        """For how many seconds the database has not answered us."""
        return 0.0 if self._asked is None else self._loop.time() - self._asked

    def look(self) -> None:
        """Something has begun, or ended, or the worker was told to stop."""
        if self.stands != self._idle():
            self._wake.set()

    def ask(self) -> None:
        """There may have been a word that was not heard."""
        self._wake.set()

    def hear(self, word: str) -> None:
        """What is told on our channel: a start, or that there is one too long to be told."""
        if word and self._loop.time() - self._said < FRESH_SECONDS:
            self._take(json.loads(word))
        else:
            # Who was frozen for a while asks whether it is still his.
            self.ask()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._keep()
            except Misconfigured as error:
                # An older grant: it can do without.
                _log.log(self._complains, "this worker makes no offers: %s", error)
                self._complains = logging.DEBUG
                self._release()
                await asyncio.sleep(RIGHTS_SECONDS)
            await self._wake.wait(self._poll_seconds * random.uniform(0.8, 1.2))  # noqa: S311  # no secret

    async def end(self) -> None:
        """Take it back. What was given for it before is begun: whoever leaves gives it back.

        Not for long: what is given to a worker that has left is given back by the next recovery.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while self.stands and self._life.worker is not None:
                    try:
                        await self._keep()
                    except Exception as error:  # noqa: BLE001  # it must not keep us from the rest
                        _log.info("the offer was not taken back: %s", whereabouts(error))
                    if self.stands:
                        await asyncio.sleep(BUSY_SECONDS)

    async def _keep(self) -> None:
        """Make the offer, or renew it, while the worker runs nothing; else take it back."""
        async with self._turn:
            worker, idle = self._life.worker, self._idle()
            if worker is None or not (self._reserve() if idle else self.stands):
                return
            asked = self._asked = self._loop.time()
            try:
                told = await self._engine.workers.offer(
                    worker, self._queues, self.channel if idle else None
                )
            finally:
                self._asked = None
            self._said = asked
            if told:
                self._take(told)
            elif told is None and not idle:
                self._release()

    def _reserve(self) -> bool:
        """Keep a slot of each sort, where one is left for claims: they go on meanwhile."""
        if not self.stands and self._slots.least_free(self._modes) > 1:
            self.stands = self._slots.take(self._modes, 1) == 1
        return self.stands

    def _release(self, but: Mode | None = None) -> None:
        if self.stands:
            self.stands = False
            for mode in self._modes:
                if mode != but:
                    self._slots.give(mode)

    def _take(self, told: Mapping[str, Any]) -> None:
        """Begin it, unless it was begun before: by the answer to an offer, or by a word of it."""
        start, worker = read_start(told), int(told["worker"])
        if (start.id, start.attempt) in self._begun:
            return
        mode = self._handlers[start.kind].mode  # nobody offers others; if not, nothing is changed
        kept = self.stands and mode in self._modes
        self._release(but=mode)
        if not kept:
            self._slots.overdraw(mode)
        self._begun.append((start.id, start.attempt))
        self._begin(start, worker)
