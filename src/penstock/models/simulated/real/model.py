"""A real small model: llama.cpp's server in this process, with Ollama's protocol in front of it.

llama.cpp has OpenAI's protocol; those calls are passed on unchanged. A call of `/api/chat` is
translated to OpenAI's protocol, and its answer back to Ollama's. All calls share the slots.
"""

import ctypes
import importlib
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.errors import Invalid, Misconfigured
from penstock.models.simulated.calls import Call
from penstock.models.simulated.connection import Connection, Refusal, Request
from penstock.models.simulated.faults.orders import Order
from penstock.models.simulated.options import Options
from penstock.models.simulated.protocols import ollama
from penstock.models.simulated.request import Answer, Ask, Spent
from penstock.models.simulated.server import Server
from penstock.models.stream import Events
from penstock.net.endpoint import read_endpoint
from penstock.net.transport import Transport

_CHAT = "/v1/chat/completions"
_PASSED_ON = (_CHAT, "/v1/completions", "/v1/embeddings")
_EXTRA = "pip install 'penstock[model]'"
# Ollama's options that llama.cpp supports, with llama.cpp's names.
_SAMPLING = {
    "num_predict": "max_tokens",
    "seed": "seed",
    "stop": "stop",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}


_ERROR_BYTES = 65_536
# llama.cpp closes idle connections, which could break a call that reuses one.
_CLOSE = {"Connection": "close"}


class _TooLong(Refusal):
    """The prompt has more tokens than the window; the part `share` of it fills half the window."""

    def __init__(self, tokens: int, window: int) -> None:
        super().__init__(400, ollama.TOO_LONG)
        self.share = window / 2 / tokens


class RealModel(Server):
    """A real model. Its llama.cpp server runs until the process ends.

    The server's destructor can wait for ever for its own accepting thread and cannot be interrupted
    (seen on 15 November 2026).
    """

    def __init__(self, options: Options, gguf: Path, threads: int = 1) -> None:
        named = replace(options, models=options.models or (gguf.stem.lower(),))
        super().__init__(named)
        llama = _load(gguf, threads, named)
        self._llama = read_endpoint(llama.listening_address, from_variable=True)

    def take_order(self, order: Order) -> None:
        if order.fault.name != "refuse":
            raise Invalid(
                "fault: a real model supports only `refuse`; use a simulated one for other faults",
                code="invalid_fault",
                field="fault",
            )
        super().take_order(order)

    async def respond(self, request: Request, wire: Connection, call: Call) -> None:
        if request.method == "POST" and request.path in ("/api/chat", "/api/generate"):
            await self._translate(request, wire, call)
        elif request.method == "POST" and request.path in _PASSED_ON:
            async with self.slots:
                await self._pass_on(request, wire)
        else:
            self.answer_without_model(request, wire)

    async def _pass_on(self, request: Request, wire: Connection) -> None:
        transport = await Transport.here()
        async with transport.post(self._llama.under(request.path), request.body, _CLOSE) as answer:
            content_type = answer.headers.get("content-type", "application/json")
            if "transfer-encoding" not in answer.headers:
                wire.send(answer.status, await answer.read(sys.maxsize) or b"", content_type)
                return
            wire.begin(answer.status, content_type)
            while chunk := await answer.chunk():
                wire.chunk(chunk)
            wire.end()

    async def _translate(self, request: Request, wire: Connection, call: Call) -> None:
        fields = request.fields()
        ask = ollama.read(request.path, fields, self.options)
        call.model, call.stream, call.prompt_chars = ask.model, ask.stream, len(ask.prompt)
        words = ollama.Ollama(ask)
        if not ask.prompt:
            wire.send(200, words.whole(Answer([], "load"), Spent(0, 0, 0)))
            return
        async with self.slots:
            self.loaded[ask.model] = datetime.now(UTC)
            body = _translated(ask, fields)
            try:
                await self._generate(words, body, wire, call)
            except _TooLong as refused:
                if not ask.truncate:
                    raise
                # Keep the end of each message, as Ollama drops the front of a prompt.
                for message in body["messages"]:
                    text = message["content"]
                    message["content"] = text[len(text) - int(len(text) * refused.share) :]
                await self._generate(words, body, wire, call)

    async def _generate(
        self, words: ollama.Ollama, body: dict[str, Any], wire: Connection, call: Call
    ) -> None:
        """Translate the answer to Ollama's protocol, token by token or in one piece."""
        began = first = time.perf_counter_ns()
        answer = Answer([])
        stream = words.ask.stream
        async for piece in self._pieces(body):
            if usage := piece.get("usage"):
                answer.prompt_tokens = usage["prompt_tokens"]
                answer.completion_tokens = usage["completion_tokens"]
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

    async def _pieces(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of llama.cpp's stream."""
        events = Events(self._llama.address)
        transport = await Transport.here()
        sent = json.dumps(body).encode()
        async with transport.post(self._llama.under(_CHAT), sent, _CLOSE) as answer:
            if answer.status != 200:  # noqa: PLR2004
                error = json.loads(await answer.read(_ERROR_BYTES) or b"{}")["error"]
                if error.get("type") == "exceed_context_size_error":
                    raise _TooLong(error["n_prompt_tokens"], error["n_ctx"])
                raise Refusal(answer.status, str(error.get("message")))
            while chunk := await answer.chunk():
                for event in events.feed(chunk):
                    if event != b"[DONE]":
                        yield json.loads(event)


def _translated(ask: Ask, fields: dict[str, Any]) -> dict[str, Any]:
    """Translate a call to OpenAI's protocol."""
    if ask.path == "/api/chat":
        messages = [
            {"role": message.get("role", "user"), "content": str(message.get("content") or "")}
            for message in fields["messages"]
        ]
    else:
        prompts = (("system", fields.get("system")), ("user", fields.get("prompt")))
        messages = [{"role": role, "content": str(text)} for role, text in prompts if text]
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
        schema = {"name": "answer", "schema": ask.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def llama_cpp() -> Any:
    """Return the library; raise Misconfigured, which says how to install it."""
    try:
        return importlib.import_module("xllamacpp")
    except ImportError:
        raise Misconfigured(f"A real model needs llama.cpp; install it: {_EXTRA}.") from None


def _load(gguf: Path, threads: int, options: Options) -> Any:
    xllamacpp = llama_cpp()
    if not gguf.is_file():
        raise Misconfigured(f"There is no file {gguf}.")
    params = xllamacpp.CommonParams()
    params.model.path = str(gguf)
    params.model_alias = set(options.listed)  # otherwise clients would receive the path of the file
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = options.slots
    # Each slot has its own window, and llama.cpp divides this number by the number of slots.
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
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))  # never destroyed; see RealModel
    return server
