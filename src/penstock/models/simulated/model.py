"""The simulated model: a server with the protocols of Ollama and OpenAI, and faults on order."""

import contextlib
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from penstock.models.simulated.calls import Call
from penstock.models.simulated.connection import Connection, Refusal, Request
from penstock.models.simulated.content.answers import answer_to
from penstock.models.simulated.faults.error_bodies import FORMS, error_response
from penstock.models.simulated.faults.orders import Match, Order, Orders, order_from
from penstock.models.simulated.faults.playback import Pace, Play, silence
from penstock.models.simulated.options import Options
from penstock.models.simulated.protocols import ollama, openai
from penstock.models.simulated.request import Ask
from penstock.models.simulated.server import Server

_PROTOCOLS: dict[str, type[ollama.Ollama | openai.OpenAI]] = {
    "/api/chat": ollama.Ollama,
    "/api/generate": ollama.Ollama,
    openai.CHAT: openai.OpenAI,
    openai.IMAGES: openai.OpenAI,
}


class Model(Server):
    """A simulated model; `simulated(...)` starts and stops one."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._orders = Orders(options.seed)
        self._pace = Pace(options)
        self._forms = itertools.cycle(FORMS)

    def order(self, fault: str, *, match: Match | None = None, **fields: Any) -> None:
        """Let the next calls fail this way: `order("status", code=503, times=2)`.

        The fault applies to all calls that request an answer, unless `times`, `seconds`, `path`,
        `chance`, `contains` or `match` limit it. With `path` it applies to any call whose path
        contains that text.
        """
        self.take_order(order_from({"fault": fault, **fields}, match))

    def take_order(self, order: Order) -> None:
        if order.fault.name == "refuse":
            super().take_order(order)
        else:
            self._orders.add(order)

    def heal(self) -> None:
        self._orders.clear()
        super().heal()

    def report(self) -> dict[str, Any]:
        return {**super().report(), "orders": self._orders.report()}

    async def respond(self, request: Request, wire: Connection, call: Call) -> None:
        protocol = _PROTOCOLS.get(request.path) if request.method == "POST" else None
        ask = None if protocol is None else self._read(request, call)
        fault = self._orders.take(request.path, ask)
        call.fault = fault.name if fault else None
        if fault and (response := error_response(fault, request.path, self._forms)):
            wire.send(*response)
        elif ask is not None and protocol is not None:
            answer = answer_to(ask, self.options, fault)
            async with self.slots:
                self.loaded[ask.model] = datetime.now(UTC)
                await Play(wire, protocol(ask), answer, fault, self._pace).run()
        elif call.fault == "hang":
            await silence()
        elif call.fault == "reset":
            wire.reset()
        else:
            self.answer_without_model(request, wire)

    def _read(self, request: Request, call: Call) -> Ask:
        read = ollama.read if request.path.startswith("/api/") else openai.read
        ask = read(request.path, request.fields(), self.options)
        call.model, call.stream = ask.model, ask.stream
        call.prompt_chars, call.prompt_tokens = len(ask.prompt), ask.prompt_tokens
        # OpenAI always refuses a prompt that is too long, Ollama only with `truncate: false`.
        window = ask.num_ctx or self.options.num_ctx
        if ask.prompt_tokens > window and not ask.images:
            if ask.path == openai.CHAT:
                message = openai.TOO_LONG.format(window=window, tokens=ask.prompt_tokens)
                raise Refusal(400, message, "context_length_exceeded")
            if not ask.truncate:
                raise Refusal(400, ollama.TOO_LONG)
        return ask


@contextlib.asynccontextmanager
async def simulated(**options: Any) -> AsyncIterator[Model]:
    """Run a simulated model in this process, by default at a free port; see `Options`."""
    model = Model(Options(**options))
    try:
        model.open()
        yield model
    finally:
        model.close()
        await model.gone()
