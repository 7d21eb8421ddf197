"""A chat with a model: the part that the Ollama and OpenAI handlers share."""

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

# The longest time between two tokens. It is shorter than a job's timeout (2m by default), so that
# a server that hangs is reported as such and not as a slow job.
STALL_SECONDS = 30.0

# The size limit of a result.
TEXT_MAX = 1_000_000
_OK = 200
_NAME_MAX = 200
_SURROGATES = range(0xD800, 0xE000)

Messages = list[dict[str, str]]


@dataclass(slots=True, kw_only=True)
class Reply(ABC):
    """An answer that is still being received. Each protocol has its own subclass."""

    address: str
    parts: list[str] = field(default_factory=list)
    length: int = 0
    tokens: int = 0
    """The number of pieces with text: close to the model's own count of tokens."""
    pieces: int = 0
    done: bool = False
    stop_reason: str | None = None
    refused: bool = False
    model: str | None = None
    used: dict[str, float] = field(default_factory=dict)
    prompt_tokens: int | None = None
    """The prompt's tokens as counted by the server, with cached ones if the server reports them."""

    @abstractmethod
    def lines(self) -> Lines:
        """Return the splitter that cuts the bytes of the stream into pieces."""

    @abstractmethod
    def read(self, piece: bytes) -> tuple[str, bool]:
        """Return the text of a piece, and whether the piece shows that the model is working."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat(ABC):
    """The options of both protocols."""

    endpoint: Endpoint
    model: str
    prompt: Prompt
    system: Prompt | None = None
    output: Output = field(default_factory=Output)
    temperature: float | None = None
    seed: int | None = None
    first_token_seconds: float | None = None
    """None: limited only by the job's timeout."""
    stall_seconds: float = STALL_SECONDS

    @abstractmethod
    def body(self, messages: Messages) -> dict[str, Any]:
        """Return the body of the request."""

    @abstractmethod
    def new_reply(self) -> Reply: ...

    def headers(self) -> dict[str, str]:
        return {}

    async def check(self, job: Job, messages: Messages, reply: Reply) -> None:  # noqa: B027
        """Refuse an answer to only a part of the prompt, if the protocol can show that."""

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
            # This check comes first: other faults of an answer to half a prompt do not matter.
            await config.check(job, messages, reply)
            return result(config, reply)

    return chat


async def ask(
    job: Job, chat: Chat, body: Mapping[str, Any], headers: Mapping[str, str], *, emit: bool = True
) -> Reply:
    """Send a chat request and read the answer token by token, until it is complete.

    `emit`: also send the text to the job's live stream. Usage is recorded in every case: the tokens
    of an answer that broke off were paid for, too.
    """
    # Imported here: the library takes a quarter of a second to load, and only workers need it.
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
                raise broken("empty", "sent an empty answer", address)
            if not reply.pieces and "stream" not in answer.headers.get("content-type", ""):
                raise broken("bad_json", "sent an answer that is not a stream of tokens", address)
            # Some servers send a stop reason and then omit the final message.
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
    """Read the received pieces and emit their text."""
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
    """Return the result of a complete answer, or raise the error for what is wrong with it."""
    text = "".join(reply.parts)
    stop = "refusal" if reply.refused else reply.stop_reason
    if stop in _STOPPED or not text.strip():
        what = _STOPPED.get(stop, "sent an empty answer")
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
    """Return the error for an unusable answer that began with status 200."""
    signal = Signal(status=_OK, exception=kind, stop_reason=stop, received=True, address=address)
    return ProviderError(f"the model at {address} {what}", signal)


def interrupted(piece: Mapping[str, Any], address: str) -> ProviderError:
    """Return the error for an answer that began with status 200 and then contains an error."""
    seen = from_value(None, {}, piece, address)
    signal = replace(seen, status=seen.status or _OK, exception="incomplete")
    return ProviderError(f"the model at {address} broke off its answer with an error", signal)


def parsed(piece: bytes, address: str) -> dict[str, Any]:
    """Parse one piece as a JSON object."""
    try:
        value = json.loads(piece)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise broken("bad_json", "sent a piece that is not a JSON object", address)
    return value


def words(value: Any) -> str:
    """Return a text that Postgres can store: without NUL and without lone surrogates."""
    if not isinstance(value, str):
        return ""
    if value.isascii():
        return value.replace("\x00", "\N{REPLACEMENT CHARACTER}") if "\x00" in value else value
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if mark == "\x00" or ord(mark) in _SURROGATES else mark
        for mark in value
    )


def name(value: Any) -> str | None:
    """Return the model's name from the server's answer, if it is a valid name."""
    fits = isinstance(value, str) and 0 < len(value) <= _NAME_MAX and value.isprintable()
    return value if fits else None
