"""Sends an answer at a model's pace, with the errors that a fault demands."""

import asyncio
import time
from random import Random
from typing import NoReturn

from penstock.models.simulated.connection import JSON, Connection
from penstock.models.simulated.faults.error_bodies import error_body
from penstock.models.simulated.faults.orders import Fault
from penstock.models.simulated.options import Options
from penstock.models.simulated.protocols.ollama import Ollama
from penstock.models.simulated.protocols.openai import OpenAI
from penstock.models.simulated.request import Answer, Spent

# Seconds to let written data leave, because a reset discards unsent data.
_FLUSH = 0.01


class Pace:
    """The time per token. With jitter calls differ from each other, but every run is the same."""

    def __init__(self, options: Options) -> None:
        self._latency = options.latency_seconds
        self._per_token = 1 / options.tokens_per_second if options.tokens_per_second else 0.0
        self._jitter = options.jitter
        self._random = Random(options.seed)  # noqa: S311  # repeatable, not secret

    def latency(self) -> float:
        return self._latency * self._factor()

    def per_token(self) -> float:
        return self._per_token * self._factor()

    def _factor(self) -> float:
        return 1 + self._jitter * self._random.uniform(-1, 1) if self._jitter else 1


class Play:
    """The sending of one answer."""

    def __init__(
        self,
        wire: Connection,
        words: Ollama | OpenAI,
        answer: Answer,
        fault: Fault | None,
        pace: Pace,
    ) -> None:
        self._wire, self._words, self._answer, self._pace = wire, words, answer, pace
        self._fault = fault.name if fault else None
        self._given = fault.parameters if fault else {}
        self._per_token = pace.per_token()
        self._began = self._first = time.perf_counter_ns()

    async def run(self) -> None:
        if self._fault == "hang":
            await silence()
        if self._fault == "reset" and self._given["after"] is None:
            self._wire.reset()
            return
        latency = self._pace.latency() + (self._given["by"] if self._fault == "delay" else 0)
        if latency > 0:
            await asyncio.sleep(latency)
        self._first = time.perf_counter_ns()
        if self._words.ask.stream:
            await self._stream()
        else:
            await self._whole()

    async def _whole(self) -> None:
        """Send the answer in one piece."""
        if self._per_token:
            await asyncio.sleep(self._per_token * len(self._answer.tokens))
        body = self._words.whole(self._answer, self._spent())
        wire, head = self._wire, self._wire.head(200, JSON, None, len(body))
        half = body[: len(body) // 2]
        match self._fault:
            case "hang_mid" | "half_body" | "cut" | "reset":
                wire.raw(head + half)
                await self._break_off()
            case "slow_bytes":
                wire.raw(head)
                size = self._given["size"]
                for at in range(0, len(body), size):
                    # Sleep before each piece: a client may disconnect right after the last one.
                    await asyncio.sleep(self._given["every"])
                    wire.raw(body[at : at + size])
            case "truncated_json":
                wire.send(200, half)
            case "error_line":
                wire.send(500, error_body(self._words.ask.path, 500, self._given["message"]))
            case _:
                wire.send(200, body)

    async def _stream(self) -> None:
        """Send the answer token by token."""
        self._wire.begin(200, self._words.stream_type)
        # The tokens before the fault; without `after`, all of them.
        tokens = self._answer.tokens[: self._given.get("after")]
        if not self._per_token and self._fault != "slow_bytes":
            if data := b"".join([self._words.first(), *map(self._words.token, tokens)]):
                self._wire.chunk(data)
        else:
            await self._send(self._words.first())
            due = time.perf_counter()
            for token in tokens:
                await self._send(self._words.token(token))
                due += self._per_token
                if (left := due - time.perf_counter()) > 0:
                    await asyncio.sleep(left)
        await self._finish()

    async def _send(self, data: bytes) -> None:
        if not data:
            return
        if self._fault != "slow_bytes":
            self._wire.chunk(data)
            return
        size = self._given["size"]
        for at in range(0, len(data), size):
            self._wire.chunk(data[at : at + size])
            await asyncio.sleep(self._given["every"])

    async def _finish(self) -> None:
        wire, last = self._wire, self._words.last(self._answer, self._spent())
        match self._fault:
            case "half_body":
                # A chunk that promises more than it holds.
                piece = self._words.token("...")
                wire.raw(b"%x\r\n%b" % (len(piece), piece[: len(piece) // 2]))
                await self._break_off()
            case "hang_mid" | "reset":
                await self._break_off()
            case "cut":
                wire.end()
            case "error_line":
                wire.chunk(self._words.error_line(self._given["message"]))
                wire.end()
            case "truncated_json":
                wire.chunk(last[: len(last) // 2])
                wire.end()
            case _:
                await self._send(last)
                wire.end()

    async def _break_off(self) -> None:
        """Hang, reset or close after the beginning of an answer."""
        if self._fault == "hang_mid":
            await silence()
        elif self._fault == "reset":
            await asyncio.sleep(_FLUSH)
            self._wire.reset()
        else:
            self._wire.close()

    def _spent(self) -> Spent:
        now = time.perf_counter_ns()
        return Spent(now - self._began, self._first - self._began, now - self._first)


async def silence() -> NoReturn:
    """Send nothing until the client or the server closes the connection."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody ends this future")
