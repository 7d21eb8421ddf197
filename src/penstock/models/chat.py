"""A conversation with a model: what Ollama's and OpenAI's handlers have in common."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from penstock.models.handlers.protocols import Job
from penstock.models.output import Output
from penstock.models.prompt import Prompt
from penstock.models.stream import Pace, paced
from penstock.net.endpoint import Endpoint
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal, from_value

# As much as a result may have.
TEXT_MAX = 1_000_000
_OK = 200
_NAME_MAX = 200
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """What a job of either kind is told."""

    endpoint: Endpoint
    model: str
    prompt: Prompt
    system: Prompt | None = None
    output: Output = field(default_factory=Output)
    first_token_seconds: float | None
    """None: as long as the job may take."""
    stall_seconds: float

    def messages(self, payload: Mapping[str, Any]) -> list[dict[str, str]]:
        said = [] if self.system is None else [("system", self.system.render(payload))]
        said.append(("user", self.prompt.render(payload)))
        return [{"role": role, "content": text} for role, text in said]


@dataclass(slots=True)
class Reply:
    """What a model has said so far."""

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

    @property
    def text(self) -> str:
        return "".join(self.parts)


class Cutter(Protocol):
    """Finds the pieces of an answer in its bytes."""

    def feed(self, chunk: bytes) -> list[bytes]: ...
    def end(self) -> list[bytes]: ...


class Reader(Protocol):
    """Reads one piece in a protocol's own words."""

    reply: Reply

    def read(self, piece: bytes) -> tuple[str, bool]:
        """The text in it, and whether it shows the model at work."""


async def ask(  # noqa: PLR0913  # the parts of one call
    job: Job,
    chat: Chat,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    *,
    cutter: Cutter,
    reader: Reader,
) -> None:
    """Send it and read the answer to its end, token by token.

    What was used is noted in any case: tokens of an answer that broke off were paid for, too.
    """
    # Here: its library takes a quarter of a second to load, and only a worker calls.
    from penstock.net.transport import Transport

    transport = await Transport.here()
    address = chat.endpoint.address
    reply = reader.reply
    sent = json.dumps(body, ensure_ascii=False).encode()
    try:
        async with (
            paced(chat.first_token_seconds, chat.stall_seconds, address) as pace,
            transport.post(chat.endpoint, sent, headers) as answer,
        ):
            if answer.status != _OK:
                raise await answer.refusal(f"the model {chat.model}")
            done = came = False
            while not done and (chunk := await answer.chunk()):
                came = True
                done = await _take(job, reader, pace, cutter.feed(chunk), address)
            if not done:
                done = await _take(job, reader, pace, cutter.end(), address)
            if not came:
                raise broken("empty", "answered with nothing", address)
            if not reply.pieces and "stream" not in answer.headers.get("content-type", ""):
                raise broken("bad_json", "answered with what is no stream of tokens", address)
            # Some servers leave out the last word after they said why they stopped.
            if not done and reply.stop_reason is None:
                raise broken("incomplete", "ended its answer before it was done", address)
            pace.over()
            await answer.finish()
    finally:
        counted = {"completion_tokens": reply.tokens} if reply.tokens else {}
        used = {**counted, **reply.used}
        if used:
            await job.usage(**used)


async def _take(job: Job, reader: Reader, pace: Pace, pieces: list[bytes], address: str) -> bool:
    """Read what has come and hand it on; whether that was all."""
    reply = reader.reply
    found = []
    for piece in pieces:
        text, alive = reader.read(piece)
        reply.pieces += 1
        if alive:
            reply.tokens += 1
            pace.token()
        if text:
            found.append(text)
        if reply.done:
            break
    if found:
        text = "".join(found)
        reply.length += len(text)
        if reply.length > TEXT_MAX:
            raise broken("bad_json", f"sent more than {TEXT_MAX} characters", address)
        reply.parts.append(text)
        await pace.resting(job.emit(text))
    return reply.done


def result(chat: Chat, reply: Reply) -> Any:
    """What a complete answer comes to, or what is wrong with it."""
    address = chat.endpoint.address
    if reply.refused:
        raise broken("empty", "refused to answer", address, stop="refusal")
    match reply.stop_reason:
        case "content_filter":
            raise broken("empty", "withheld its answer", address, stop="content_filter")
        case "length":
            raise broken(
                "empty", "was cut off: its answer is longer than allowed", address, stop="length"
            )
        case _:
            pass
    text = reply.text
    if not text.strip():
        raise broken("empty", "answered with nothing", address)
    if chat.output.json:
        return chat.output.read(text, address)
    return {"text": text, "model": reply.model or chat.model}


def broken(kind: str, said: str, address: str, *, stop: str | None = None) -> ProviderError:
    """An answer that began with 200 and is no good."""
    signal = Signal(status=_OK, exception=kind, stop_reason=stop, received=True, address=address)
    return ProviderError(f"the model at {address} {said}", signal)


def interrupted(said: Mapping[str, Any], address: str) -> ProviderError:
    """An error in the midst of an answer that began with 200."""
    seen = from_value(None, {}, said, address)
    signal = replace(seen, status=seen.status or _OK, exception="incomplete")
    return ProviderError(f"the model at {address} broke off its answer with an error", signal)


def parsed(piece: bytes, address: str) -> dict[str, Any]:
    """One piece as an object."""
    try:
        found = json.loads(piece)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise broken("bad_json", "sent what is no JSON object", address)
    return found


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
    """The model's name as the server tells it, if it is one."""
    fits = isinstance(value, str) and 0 < len(value) <= _NAME_MAX and value.isprintable()
    return value if fits else None
