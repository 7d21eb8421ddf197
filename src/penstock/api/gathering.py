"""Questions that many ask at the same time, asked as one: after a restart all clients come back."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Gathering(Generic[Question, Answer]):
    """While one call is on its way the next gathers: so who is alone does not wait."""

    def __init__(
        self, ask: Callable[[Sequence[Question]], Awaitable[Sequence[Answer]]], most: int
    ) -> None:
        self._ask = ask
        self._most = most
        self._waiting: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Answer:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((question, answer))
        if self._task is None:
            self._task = loop.create_task(self._keep_asking())
        return await answer

    async def _keep_asking(self) -> None:
        try:
            while self._waiting:
                asked, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._answer(asked)
        finally:
            self._task = None

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
