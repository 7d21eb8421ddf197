"""The simulated model: a server that speaks like Ollama and OpenAI, and fails when told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, Unpack

from penstock.models.simulated.calls import Call
from penstock.models.simulated.connection import Connection, Request
from penstock.models.simulated.content.answers import answer_to
from penstock.models.simulated.faults.error_bodies import (
    Storms,
    error_body,
    html_body,
    quota_body,
    status_body,
)
from penstock.models.simulated.faults.faults import (
    Empty,
    Fault,
    Hang,
    Html,
    NotJson,
    Quota,
    Refuse,
    Refuses,
    Reset,
    Status,
    Storm,
)
from penstock.models.simulated.faults.orders import Match, Order, Orders, fault_from, order_written
from penstock.models.simulated.faults.playback import Pace, Play, silence
from penstock.models.simulated.options import Options, Written
from penstock.models.simulated.protocols import ollama, openai
from penstock.models.simulated.protocols.model_list import answer_look_up
from penstock.models.simulated.request import Ask, Dialect, Refusal
from penstock.models.simulated.server import Server
from penstock.models.simulated.slots import LineFull

_DIALECTS: dict[str, Callable[[Ask], Dialect]] = {
    "/api/chat": ollama.Ollama,
    "/api/generate": ollama.Ollama,
    openai.CHAT: openai.OpenAI,
    openai.IMAGES: openai.OpenAI,
}
_NONSENSE = b"I am sorry, but something went wrong"


class Model(Server):
    """A simulated model; `simulated(...)` starts and ends one."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._orders = Orders(options.seed)
        self._pace = Pace(options)
        self._storms = Storms()
        self._loaded: dict[str, datetime] = {}
        self._again: asyncio.TimerHandle | None = None

    # What a test or a person commands.

    def order(  # noqa: PLR0913  # the terms of an order
        self,
        fault: Fault | str,
        *,
        times: int | None = None,
        seconds: float | None = None,
        path: str | None = None,
        chance: float = 1,
        contains: str | None = None,
        match: Match | None = None,
        **parameters: Any,
    ) -> None:
        """Let the next calls fail this way: all of them, unless told how many, how long, which.

        `fault` is a value of `faults`, or its name with parameters: `order("status", code=503)`.
        A fault meets calls that ask for an answer; with `path`, any call whose path holds that.
        """
        if isinstance(fault, str):
            fault = order_written(fault).fault if ":" in fault else fault_from(fault, parameters)
        self.take_order(
            Order(
                fault=fault,
                times=times,
                seconds=seconds,
                path=path,
                chance=chance,
                contains=contains,
                match=match,
            )
        )

    def take_order(self, order: Order) -> None:
        if isinstance(order.fault, Refuse):
            self.stop()
            if order.seconds is not None:
                later = asyncio.get_running_loop().call_later
                self._again = later(order.seconds, self.start)
        else:
            self._orders.add(order)

    def heal(self) -> None:
        """No more faults, and the port is open. What hangs already goes on hanging."""
        self._orders.clear()
        self.start()

    def start(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        super().start()

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        super().close()

    def report(self) -> dict[str, Any]:
        return {**super().report(), "orders": self._orders.report()}

    # What it answers.

    async def respond(self, request: Request, wire: Connection, call: Call) -> None:
        path = request.path
        dialect = _DIALECTS.get(path) if request.method == "POST" else None
        try:
            self.authorise(request)
            if dialect is None:
                await self._look_up(request, wire, call)
                return
            ask = self._read(request)
            call.model, call.stream = ask.model, ask.stream
            call.prompt_chars, call.prompt_tokens = len(ask.prompt), ask.prompt_tokens
            self._fits(ask)
            fault = self._orders.take(path, ask)
            if fault is not None:
                call.fault = fault.name
                if self._fail(fault, path, wire):
                    return
            answer = answer_to(ask, self.options, fault)
            async with self.slots:
                self._loaded[ask.model] = datetime.now(UTC)
                await Play(wire, dialect(ask), answer, fault, self._pace).run()
        except Refusal as refusal:
            said = error_body(path, refusal.status, refusal.message, refusal.code)
            wire.send(refusal.status, said)
        except LineFull:
            wire.send(503, error_body(path, 503, ollama.BUSY))

    def _read(self, request: Request) -> Ask:
        try:
            fields = request.fields()
        except ValueError as wrong:
            raise Refusal(400, f"the body is not valid JSON: {type(wrong).__name__}") from None
        read = ollama.read if request.path.startswith("/api/") else openai.read
        return read(request.path, fields, self.options)

    def _fits(self, ask: Ask) -> None:
        """Ollama refuses a prompt that is too long only when told not to cut it, OpenAI always."""
        window = ask.num_ctx or self.options.num_ctx
        if ask.images or ask.prompt_tokens <= window:
            return
        if ask.path == openai.CHAT:
            said = openai.TOO_LONG.format(window=window, tokens=ask.prompt_tokens)
            raise Refusal(400, said, "context_length_exceeded")
        if not ask.truncate:
            raise Refusal(400, ollama.TOO_LONG)

    def _fail(self, fault: Fault, path: str, wire: Connection) -> bool:
        """Answer with a fault that needs no model; False for the others."""
        match fault:
            case Status():
                body = status_body(fault, path)
            case Storm():
                body = self._storms.body(fault, path)
            case Quota():
                body = quota_body(fault)
            case Html():
                body = html_body(fault)
            case Refuses() if path == openai.IMAGES:
                wire.send(400, openai.pictures_refused())
                return True
            case NotJson():
                wire.send(200, _NONSENSE)
                return True
            case Empty("body"):
                wire.send(200, b"")
                return True
            case _:
                return False
        wire.send(body.status, body.data, body.content_type, body.headers)
        return True

    async def _look_up(self, request: Request, wire: Connection, call: Call) -> None:
        """The calls that ask for no answer of the model."""
        fault = self._orders.take(request.path, None)
        if fault is not None:
            call.fault = fault.name
            if self._fail(fault, request.path, wire):
                return
            if isinstance(fault, Hang):
                await silence()
            if isinstance(fault, Reset):
                wire.reset()
                return
        answer_look_up(request, wire, self.options, self._loaded)


@contextlib.asynccontextmanager
async def simulated(**options: Unpack[Written]) -> AsyncIterator[Model]:
    """A simulated model in this process, at a free port unless told; see `Options`."""
    model = Model(Options(**options))
    try:
        model.open()
        yield model
    finally:
        model.close()
        await model.gone()
