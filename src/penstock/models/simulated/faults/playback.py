"""Saying an answer on the wire, at a model's pace, and as wrongly as the fault wants it."""

import asyncio
import time
from random import Random
from typing import NoReturn

from penstock.models.simulated.connection import JSON, Connection
from penstock.models.simulated.faults.error_bodies import error_body
from penstock.models.simulated.faults.faults import (
    Cut,
    Delay,
    ErrorLine,
    Fault,
    HalfBody,
    Hang,
    HangMid,
    Reset,
    SlowBytes,
    TruncatedJson,
)
from penstock.models.simulated.options import Options
from penstock.models.simulated.request import Answer, Dialect, Spent

# Seconds in which what was written leaves, before a reset throws away what has not.
_FLUSH = 0.01


class Pace:
    """How long tokens take. With jitter no two calls take the same time, but every run does."""

    def __init__(self, options: Options) -> None:
        self._latency = options.latency_seconds
        self._per_token = 1 / options.tokens_per_second if options.tokens_per_second else 0.0
        self._jitter = options.jitter
        self._random = Random(options.seed)  # noqa: S311  # repeatable, not secret

    @property
    def unhurried(self) -> bool:
        return self._per_token > 0

    def latency(self) -> float:
        return self._latency * self._factor()

    def per_token(self) -> float:
        return self._per_token * self._factor()

    def _factor(self) -> float:
        return 1 + self._jitter * self._random.uniform(-1, 1) if self._jitter else 1


class Play:
    """One answer being said."""

    def __init__(
        self, wire: Connection, words: Dialect, answer: Answer, fault: Fault | None, pace: Pace
    ) -> None:
        self._wire, self._words, self._answer, self._fault = wire, words, answer, fault
        self._pace = pace
        self._per_token = pace.per_token()
        self._began = time.perf_counter_ns()
        self._first = self._began

    async def run(self) -> None:
        if isinstance(self._fault, Hang):
            await silence()
        if isinstance(self._fault, Reset) and self._fault.after is None:
            self._wire.reset()
            return
        latency = self._pace.latency()
        if isinstance(self._fault, Delay):
            latency += self._fault.by
        if latency > 0:
            await asyncio.sleep(latency)
        self._first = time.perf_counter_ns()
        if self._words.ask.stream:
            await self._stream()
        else:
            await self._whole()

    # In one piece.

    async def _whole(self) -> None:
        if self._per_token:
            await asyncio.sleep(self._per_token * len(self._answer.tokens))
        body = self._words.whole(self._answer, self._spent())
        wire, fault = self._wire, self._fault
        half = wire.head(200, JSON, None, len(body)) + body[: len(body) // 2]
        match fault:
            case HangMid():
                wire.raw(half)
                await silence()
            case HalfBody() | Cut():
                wire.raw(half)
                wire.close()
            case Reset():
                wire.raw(half)
                await asyncio.sleep(_FLUSH)
                wire.reset()
            case SlowBytes(size, every):
                wire.raw(wire.head(200, JSON, None, len(body)))
                for at in range(0, len(body), size):
                    # Before each: whoever has the last drop may leave at once.
                    await asyncio.sleep(every)
                    wire.raw(body[at : at + size])
            case TruncatedJson():
                wire.send(200, body[: len(body) // 2])
            case ErrorLine(_, message):
                wire.send(500, error_body(self._words.ask.path, 500, message))
            case _:
                wire.send(200, body)

    # Token by token.

    async def _stream(self) -> None:
        self._wire.begin(200, self._words.stream_type)
        tokens = self._answer.tokens
        stop = self._stop(len(tokens))
        if not self._pace.unhurried and not isinstance(self._fault, SlowBytes):
            said = b"".join([self._words.first(), *map(self._words.token, tokens[:stop])])
            if said:
                self._wire.chunk(said)
        else:
            await self._say(self._words.first())
            due = time.perf_counter()
            for token in tokens[:stop]:
                await self._say(self._words.token(token))
                due += self._per_token
                if (left := due - time.perf_counter()) > 0:
                    await asyncio.sleep(left)
        await self._finish()

    def _stop(self, tokens: int) -> int:
        """How many tokens are said before the fault, or the end."""
        match self._fault:
            case HangMid(after) | HalfBody(after) | Cut(after) | ErrorLine(after, _):
                return min(after, tokens)
            case Reset(int(after)):
                return min(after, tokens)
            case _:
                return tokens

    async def _say(self, data: bytes) -> None:
        if not data:
            return
        if not isinstance(self._fault, SlowBytes):
            self._wire.chunk(data)
            return
        for at in range(0, len(data), self._fault.size):
            self._wire.chunk(data[at : at + self._fault.size])
            await asyncio.sleep(self._fault.every)

    async def _finish(self) -> None:
        wire = self._wire
        match self._fault:
            case HangMid():
                await silence()
            case HalfBody():
                # A chunk that promises more than it holds.
                piece = self._words.token("...")
                wire.raw(b"%x\r\n%b" % (len(piece), piece[: len(piece) // 2]))
                wire.close()
            case Cut():
                wire.end()
            case Reset():
                await asyncio.sleep(_FLUSH)
                wire.reset()
            case ErrorLine(_, message):
                wire.chunk(self._words.error_line(message))
                wire.end()
            case TruncatedJson():
                last = self._words.last(self._answer, self._spent())
                wire.chunk(last[: len(last) // 2])
                wire.end()
            case _:
                await self._say(self._words.last(self._answer, self._spent()))
                wire.end()

    def _spent(self) -> Spent:
        now = time.perf_counter_ns()
        return Spent(now - self._began, self._first - self._began, now - self._first)


async def silence() -> NoReturn:
    """Say nothing until the client, or the server, has had enough."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody ends this future")
