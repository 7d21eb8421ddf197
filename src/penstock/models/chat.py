"""A conversation with a model: what Ollama's and OpenAI's handlers have in common."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.models.handlers.job import Job
from penstock.models.handlers.protocols import Handler
from penstock.models.output import Output
from penstock.models.prompt import Prompt
from penstock.models.stream import Lines, Pace, paced
from penstock.net.endpoint import Endpoint
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal, from_value

# How long the next token may take. A model is loaded first, from a disk perhaps. Less than a job's
# time-out (2m by default), so that a server that hangs is seen as such.
STALL_SECONDS = 30.0

# As much as a result may have.
TEXT_MAX = 1_000_000
_OK = 200
_NAME_MAX = 200
_SURROGATES = range(0xD800, 0xE000)

Messages = list[dict[str, str]]


@dataclass(slots=True, kw_only=True)
class Reply(ABC):
    """An answer as it comes, piece by piece; each protocol reads its own."""

    address: str
    parts: list[str] = field(default_factory=list)
    length: int = 0
    tokens: int = 0
    """Pieces with words in them: about as many as the model counts tokens."""
    pieces: int = 0
    done: bool = False
    stop_reason: str | None = None
    refused: bool = False
    model: str | None = None
    used: dict[str, float] = field(default_factory=dict)
    prompt_tokens: int | None = None
    """What the server counted of the prompt, with what it had in its cache where it says so."""

    @abstractmethod
    def lines(self) -> Lines:
        """What cuts the bytes of the stream into pieces."""

    @abstractmethod
    def read(self, piece: bytes) -> tuple[str, bool]:
        """The text in a piece, and whether it shows the model at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat(ABC):
    """The options that both protocols have."""

    endpoint: Endpoint
    model: str
    prompt: Prompt
    system: Prompt | None = None
    output: Output = field(default_factory=Output)
    temperature: float | None = None
    seed: int | None = None
    first_token_seconds: float | None = None
    """None: as long as the job may take."""
    stall_seconds: float = STALL_SECONDS

    @abstractmethod
    def body(self, messages: Messages) -> dict[str, Any]:
        """What is sent."""

    @abstractmethod
    def new_reply(self) -> Reply: ...

    def headers(self) -> dict[str, str]:
        return {}

    async def check(self, job: Job, messages: Messages, reply: Reply) -> None:  # noqa: B027
        """Refuse an answer to a part of the prompt, where the protocol lets that be seen."""

    def messages(self, payload: Mapping[str, Any]) -> Messages:
        prompts = {"system": self.system, "user": self.prompt}
        return [
            {"role": role, "content": prompt.render(payload)}
            for role, prompt in prompts.items()
            if prompt is not None
        ]


def build(config: Chat) -> Handler:
    async def chat(job: Job, payload: dict[str, Any]) -> Any:
        messages = config.messages(payload)
        async with job.stage("generating", label=f"{config.model[:100]} is writing"):
            headers = {"Idempotency-Key": job.key, **config.headers()}
            reply = await ask(job, config, config.body(messages), headers)
            # First: what is wrong with an answer to half a prompt does not matter any more.
            await config.check(job, messages, reply)
            return result(config, reply)

    return chat


async def ask(
    job: Job, chat: Chat, body: Mapping[str, Any], headers: Mapping[str, str], *, emit: bool = True
) -> Reply:
    """Send it and read the answer to its end, token by token; `emit`: into the job's live stream.

    What was used is noted in any case: tokens of an answer that broke off were paid for, too.
    """
    # Here: its library takes a quarter of a second to load, and only a worker calls.
    from penstock.net.transport import Transport

    transport = await Transport.here()
    address = chat.endpoint.address
    reply = chat.new_reply()
    lines = reply.lines()
    emitting = job if emit else None
    sent = json.dumps(body, ensure_ascii=False).encode()
    try:
        async with (
            paced(chat.first_token_seconds, chat.stall_seconds, address) as pace,
            transport.post(chat.endpoint, sent, headers) as answer,
        ):
            if answer.status != _OK:
                raise await answer.refusal(f"the model {chat.model}")
            came = False
            while not reply.done and (chunk := await answer.chunk()):
                came = True
                await _take(emitting, reply, pace, lines.feed(chunk))
            if not reply.done:
                await _take(emitting, reply, pace, lines.end())
            if not came:
                raise broken("empty", "answered with nothing", address)
            if not reply.pieces and "stream" not in answer.headers.get("content-type", ""):
                raise broken("bad_json", "answered with what is no stream of tokens", address)
            # Some servers leave out the last word after they said why they stopped.
            if not reply.done and reply.stop_reason is None:
                raise broken("incomplete", "ended its answer before it was done", address)
            pace.over()
            await answer.finish()
    finally:
        counted = {"completion_tokens": reply.tokens} if reply.tokens else {}
        if used := {**counted, **reply.used}:
            await job.usage(**used)
    return reply


async def _take(job: Job | None, reply: Reply, pace: Pace, pieces: list[bytes]) -> None:
    """Read what has come and emit its text."""
    texts = []
    for piece in pieces:
        if not piece.strip():
            continue
        text, alive = reply.read(piece)
        reply.pieces += 1
        if alive:
            reply.tokens += 1
            pace.token()
        if text:
            texts.append(text)
        if reply.done:
            break
    if texts:
        text = "".join(texts)
        reply.length += len(text)
        if reply.length > TEXT_MAX:
            raise broken("bad_json", f"sent more than {TEXT_MAX} characters", reply.address)
        reply.parts.append(text)
        if job is not None:
            await pace.waiting(job.emit(text))


def result(chat: Chat, reply: Reply) -> Any:
    """What a complete answer comes to, or what is wrong with it."""
    text = "".join(reply.parts)
    stop = "refusal" if reply.refused else reply.stop_reason
    if stop in _STOPPED or not text.strip():
        what = _STOPPED.get(stop, "answered with nothing")
        raise broken("empty", what, reply.address, stop=stop if stop in _STOPPED else None)
    if chat.output.json:
        return chat.output.read(text, reply.address)
    return {"text": text, "model": reply.model or chat.model}


_STOPPED: dict[str | None, str] = {
    "refusal": "refused to answer",
    "content_filter": "withheld its answer",
    "length": "was cut off: its answer is longer than allowed",
}


def broken(kind: str, what: str, address: str, *, stop: str | None = None) -> ProviderError:
    """An answer that began with 200 and is no good."""
    signal = Signal(status=_OK, exception=kind, stop_reason=stop, received=True, address=address)
    return ProviderError(f"the model at {address} {what}", signal)


def interrupted(piece: Mapping[str, Any], address: str) -> ProviderError:
    """An error in the midst of an answer that began with 200."""
    seen = from_value(None, {}, piece, address)
    signal = replace(seen, status=seen.status or _OK, exception="incomplete")
    return ProviderError(f"the model at {address} broke off its answer with an error", signal)


def parsed(piece: bytes, address: str) -> dict[str, Any]:
    """One piece as an object."""
    try:
        value = json.loads(piece)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise broken("bad_json", "sent what is no JSON object", address)
    return value


def words(value: Any) -> str:
    """A text as Postgres can keep it: no NUL, no half of a character."""
    if not isinstance(value, str):
        return ""
    if value.isascii():
        return value.replace("\x00", "\N{REPLACEMENT CHARACTER}") if "\x00" in value else value
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if mark == "\x00" or ord(mark) in _SURROGATES else mark
        for mark in value
    )


def name(value: Any) -> str | None:
    """The model's name as the server sends it, if it is one."""
    fits = isinstance(value, str) and 0 < len(value) <= _NAME_MAX and value.isprintable()
    return value if fits else None
