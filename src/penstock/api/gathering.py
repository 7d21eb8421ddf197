"""Questions that many ask at the same time, asked as one: after a restart all clients come back."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Gathering(Generic[Question, Answer]):
    """While calls are on their way the next gathers: so who is alone does not wait.

    `most`: questions of one call; `lines`: calls on their way at once.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[Question]], Awaitable[Sequence[Answer]]],
        most: int,
        lines: int = 1,
    ) -> None:
        self._ask = ask
        self._most = most
        self._lines = lines
        self._waiting: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, question: Question) -> Answer:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((question, answer))
        # One that is about to begin takes this one along, unless it is full.
        if len(self._tasks) < self._lines:
            self._tasks.add(loop.create_task(self._keep_asking()))
        return await answer

    async def _keep_asking(self) -> None:
        try:
            while self._waiting:
                asked, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                # Who has stopped waiting was told that it failed: it must not be done now.
                asked = [one for one in asked if not one[1].done()]
                if asked:
                    await self._answer(asked)
        finally:
            # Here and not in a callback: a question between the two would find nobody to ask it.
            self._tasks.discard(asyncio.current_task())

    async def _answer(self, asked: Sequence[tuple[Question, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._ask([question for question, _ in asked])
        except Exception as error:  # noqa: BLE001  # theirs to hear
            for _, waits in asked:
                if not waits.done():
                    waits.set_exception(error)
            return
        for (_, waits), answer in zip(asked, answers, strict=True):
            if not waits.done():
                waits.set_result(answer)
