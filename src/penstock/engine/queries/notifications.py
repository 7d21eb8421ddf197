"""Calls of one event loop that share a NOTIFY (`Notifier`) or a statement (`Batcher`).

A notification is sent after the commit it is about. It only makes things faster: a lost one costs a
worker or a watcher a poll interval. A NOTIFY takes a lock at commit that all of them share, so a
storm of commits sends few: the first at once, or with the commit itself; then at most one per key
and pause; and none while nothing happens.

After a restart all clients reconnect at once, so questions that arrive together share a statement.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

# Between two notifications for the workers of a queue.
WAKE_PAUSE_SECONDS = 0.005
# Between two notifications for those who watch jobs.
CHANGE_PAUSE_SECONDS = 0.04
# How long the last notification of a server or worker that stops may take.
LAST_SECONDS = 1.0


Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Notifier:
    """Sends notifications for keys (queues; one empty key if there is nothing to tell apart)."""

    def __init__(
        self, send: Callable[[Sequence[str]], Awaitable[None]], *, pause_seconds: float
    ) -> None:
        self._send = send
        self._pause_seconds = pause_seconds
        self._unsent: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def notify(self, key: str = "") -> None:
        """Have a notification sent; return at once. Errors of sending are dropped."""
        self._unsent.add(key)
        task = self._tasks.get(key)
        if task is None or task.done():
            self._start(key)

    def may_join_commit(self, key: str) -> bool:
        """Whether the next commit may send the notification itself; then the pause begins."""
        if key in self._tasks:
            return False
        self._start(key)
        return True

    async def close(self, seconds: float | None = None) -> None:
        """Send what is not sent yet, within `seconds`: a script may end right after its submit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while running := [task for task in self._tasks.values() if not task.done()]:
                    await asyncio.wait(running)
                if self._unsent:
                    # The end of `asyncio.run` cancels tasks before it closes anything else.
                    await self._send_now(*self._unsent)

    def _start(self, key: str) -> None:
        self._tasks[key] = asyncio.get_running_loop().create_task(self._keep_sending(key))

    async def _keep_sending(self, key: str) -> None:
        # If the notification went with a commit, there is none to send: the pause comes first.
        if key in self._unsent:
            await self._send_now(key)
        await asyncio.sleep(self._pause_seconds)
        while key in self._unsent:
            await self._send_now(key)
            await asyncio.sleep(self._pause_seconds)
        # Here and not in a callback: a `notify` between the two would find a task that is done.
        del self._tasks[key]

    async def _send_now(self, *keys: str) -> None:
        # Before it is sent: a commit that follows meanwhile needs a notification of its own.
        self._unsent.difference_update(keys)
        try:
            with suppress(Exception):
                await self._send(keys)
        except asyncio.CancelledError:
            self._unsent.update(keys)
            raise


class Batcher(Generic[Question, Answer]):
    """While a batch is answered the next one gathers, so a single question does not wait."""

    def __init__(
        self,
        ask: Callable[[Sequence[Question]], Awaitable[Sequence[Answer]]],
        most: int,
        at_once: int = 1,
    ) -> None:
        """`most`: questions of one batch; `at_once`: batches that are answered at the same time."""
        self._ask = ask
        self._most = most
        self._at_once = at_once
        self._waiting: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, question: Question) -> Answer:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((question, answer))
        # A batch that is about to begin takes this question along, unless it is full.
        if len(self._tasks) < self._at_once:
            self._tasks.add(loop.create_task(self._keep_asking()))
        return await answer

    async def _keep_asking(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                # A caller that has stopped waiting was answered with a failure: its call must not
                # take effect now.
                batch = [(question, answer) for question, answer in batch if not answer.done()]
                if batch:
                    await self._answer(batch)
        finally:
            # Not in a callback of the task: a question asked before the callback would stay there.
            self._tasks.discard(asyncio.current_task())

    async def _answer(self, batch: Sequence[tuple[Question, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._ask([question for question, _ in batch])
        except Exception as error:  # noqa: BLE001  # raised in each caller
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
