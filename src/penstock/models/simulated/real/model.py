"""A real small model: llama.cpp's server in this process, and Ollama's protocol before it.

llama.cpp speaks OpenAI's protocol itself; those calls are passed on as they are. A call of
`/api/chat` is put into its words, and its answer back into Ollama's. All of them share the slots.
"""

import contextlib
import ctypes
import importlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.errors import Invalid, Misconfigured
from penstock.models.simulated.calls import Call
from penstock.models.simulated.connection import Connection, Request
from penstock.models.simulated.faults.error_bodies import error_body
from penstock.models.simulated.faults.faults import Refuse
from penstock.models.simulated.faults.orders import Order
from penstock.models.simulated.options import Options
from penstock.models.simulated.protocols import ollama
from penstock.models.simulated.protocols.model_list import answer_look_up
from penstock.models.simulated.real.upstream import Reply, calling
from penstock.models.simulated.request import Answer, Ask, Refusal, Spent
from penstock.models.simulated.server import Server
from penstock.models.simulated.slots import LineFull

_CHAT = "/v1/chat/completions"
_PASSED_ON = (_CHAT, "/v1/completions", "/v1/embeddings")
_EXTRA = "pip install 'penstock[model]'"
# Of Ollama's options, those that llama.cpp has by another name or the same.
_SAMPLING = {
    "num_predict": "max_tokens",
    "seed": "seed",
    "stop": "stop",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}


class _TooLong(Exception):  # noqa: N818
    """The prompt has more tokens than the window."""

    def __init__(self, tokens: int, window: int) -> None:
        super().__init__(tokens, window)
        self.tokens, self.window = tokens, window


class RealModel(Server):
    def __init__(self, options: Options, gguf: Path, threads: int = 1) -> None:
        named = replace(options, models=options.models or (gguf.stem.lower(),))
        super().__init__(named)
        self._llama = _load(gguf, threads, named)
        self._loaded: dict[str, datetime] = {}

    def take_order(self, order: Order) -> None:
        if not isinstance(order.fault, Refuse):
            raise Invalid(
                "fault: a real model can only `refuse`; the others are the simulated one's",
                code="invalid_fault",
                field="fault",
            )
        self.stop()

    def heal(self) -> None:
        self.start()

    def close(self) -> None:
        super().close()
        # llama.cpp's server is left to the end of the process: its destructor was seen to wait for
        # its own accepting thread for ever (15 November 2026), with no way to interrupt it.

    async def respond(self, request: Request, wire: Connection, call: Call) -> None:
        path = request.path
        try:
            self.authorise(request)
            if request.method == "POST" and path in ("/api/chat", "/api/generate"):
                await self._ollama(request, wire, call)
            elif request.method == "POST" and path in _PASSED_ON:
                async with self.slots:
                    await self._pass_on(request, wire)
            else:
                answer_look_up(request, wire, self.options, self._loaded)
        except Refusal as refusal:
            wire.send(
                refusal.status, error_body(path, refusal.status, refusal.message, refusal.code)
            )
        except LineFull:
            wire.send(503, error_body(path, 503, ollama.BUSY))

    async def _pass_on(self, request: Request, wire: Connection) -> None:
        async with calling(self._llama.listening_address, request.path, request.body) as reply:
            if not reply.chunked:
                wire.send(reply.status, await reply.body(), reply.content_type)
                return
            wire.begin(reply.status, reply.content_type)
            async for part in reply.parts():
                wire.chunk(part)
            wire.end()

    async def _ollama(self, request: Request, wire: Connection, call: Call) -> None:
        try:
            fields = request.fields()
        except ValueError:
            raise Refusal(400, "the body is not valid JSON") from None
        ask = ollama.read(request.path, fields, self.options)
        call.model, call.stream, call.prompt_chars = ask.model, ask.stream, len(ask.prompt)
        words = ollama.Ollama(ask)
        if not ask.prompt:
            wire.send(200, words.whole(Answer([], "load"), Spent(0, 0, 0)))
            return
        async with self.slots:
            self._loaded[ask.model] = datetime.now(UTC)
            translated = _translated(ask, fields)
            try:
                await self._say(words, translated, wire, call)
            except _TooLong as long:
                if not ask.truncate:
                    raise Refusal(400, ollama.TOO_LONG) from None
                _cut(translated, long.window / 2 / long.tokens)
                try:
                    await self._say(words, translated, wire, call)
                except _TooLong:
                    raise Refusal(400, ollama.TOO_LONG) from None

    async def _say(
        self, words: ollama.Ollama, body: dict[str, Any], wire: Connection, call: Call
    ) -> None:
        """Put the answer into Ollama's words, token by token or in one piece."""
        began = first = time.perf_counter_ns()
        answer = Answer([])
        stream = words.ask.stream
        async with self._asking(body) as reply:
            async for event in reply.events():
                piece = json.loads(event)
                if usage := piece.get("usage"):
                    answer.prompt_tokens = usage["prompt_tokens"]
                    answer.tokens_told = usage["completion_tokens"]
                for choice in piece.get("choices", ()):
                    answer.finish = choice["finish_reason"] or answer.finish
                    if text := choice["delta"].get("content"):
                        first = first if answer.tokens else time.perf_counter_ns()
                        answer.tokens.append(text)
                        if stream:
                            if wire.status is None:
                                wire.begin(200, words.stream_type)
                            wire.chunk(words.token(text))
        call.prompt_tokens = answer.prompt_tokens
        now = time.perf_counter_ns()
        spent = Spent(now - began, first - began, now - first)
        if not stream:
            wire.send(200, words.whole(answer, spent))
            return
        if wire.status is None:
            wire.begin(200, words.stream_type)
        wire.chunk(words.last(answer, spent))
        wire.end()

    @contextlib.asynccontextmanager
    async def _asking(self, body: dict[str, Any]) -> AsyncIterator[Reply]:
        data = json.dumps(body).encode()
        async with calling(self._llama.listening_address, _CHAT, data) as reply:
            if reply.status != 200:  # noqa: PLR2004
                error = json.loads(await reply.body())["error"]
                if error.get("type") == "exceed_context_size_error":
                    raise _TooLong(error["n_prompt_tokens"], error["n_ctx"])
                raise Refusal(reply.status, str(error.get("message")))
            yield reply


def _translated(ask: Ask, fields: dict[str, Any]) -> dict[str, Any]:
    """The call in OpenAI's words."""
    if ask.path == "/api/chat":
        messages = [
            {"role": message.get("role", "user"), "content": str(message.get("content") or "")}
            for message in fields["messages"]
        ]
    else:
        said = (("system", fields.get("system")), ("user", fields.get("prompt")))
        messages = [{"role": role, "content": str(text)} for role, text in said if text]
    body: dict[str, Any] = {
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    chosen = fields.get("options") or {}
    body |= {theirs: chosen[name] for name, theirs in _SAMPLING.items() if name in chosen}
    if ask.schema == "json":
        body["response_format"] = {"type": "json_object"}
    elif ask.schema is not None:
        wanted = {"name": "answer", "schema": ask.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return body


def _cut(body: dict[str, Any], share: float) -> None:
    """Keep the end of each message, as Ollama drops the front of a prompt that is too long."""
    for message in body["messages"]:
        text = message["content"]
        message["content"] = text[len(text) - int(len(text) * share) :]


def llama_cpp() -> Any:
    """The library, or the sentence that says how to come by it."""
    try:
        return importlib.import_module("xllamacpp")
    except ImportError:
        raise Misconfigured(f"A real model needs llama.cpp: {_EXTRA}.") from None


def _load(gguf: Path, threads: int, options: Options) -> Any:
    xllamacpp = llama_cpp()
    if not gguf.is_file():
        raise Misconfigured(f"There is no file {gguf}.")
    params = xllamacpp.CommonParams()
    params.model.path = str(gguf)
    params.model_alias = set(options.listed)  # else it tells clients where the file is
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = options.slots
    # Each slot has its own window, and llama.cpp divides what it is given by their number.
    params.n_ctx = options.num_ctx * options.slots
    params.cpuparams.n_threads = threads
    params.warmup = False
    params.verbosity = -1
    try:
        server = xllamacpp.Server(params)
    except Exception as error:
        raise Misconfigured(
            f"llama.cpp cannot load {gguf}; it must be a GGUF file of a language model."
        ) from error
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))  # never destroyed; see `close`
    return server
