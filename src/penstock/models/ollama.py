"""The handler of `handler = "ollama"`: Ollama's own `/api/chat`, and not its OpenAI façade.

The façade ignores `num_ctx`, and with it every promise about the length of a prompt.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.models import usage
from penstock.models.chat import Chat, Reply, ask, broken, interrupted, name, parsed, result, words
from penstock.models.context_window import least_tokens, looks_cut
from penstock.models.handlers.protocols import Handler, Job
from penstock.models.stream import JsonLines
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal

NUM_CTX = 8_192
NUM_PREDICT = 2_048
# A model is loaded first, from a disk perhaps. Less than a job's time-out (2m unless said): so a
# server that hangs is seen as such, and not as a job that takes long.
STALL_SECONDS = 30.0

# Servers (address, model) that were seen to leave cached tokens out of their count.
_uncounted: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ollama(Chat):
    num_ctx: int = NUM_CTX
    num_predict: int = NUM_PREDICT
    temperature: float | None = None
    seed: int | None = None
    keep_alive: float | str | None = None
    """Seconds that the model stays loaded; less than 0: for ever."""
    first_token_seconds: float | None = None
    stall_seconds: float = STALL_SECONDS

    def body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        options = {
            "num_ctx": self.num_ctx,
            "num_predict": self.num_predict,
            **usage.given(temperature=self.temperature, seed=self.seed),
        }
        body = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "truncate": False,
            "options": options,
        }
        if self.output.json:
            body["format"] = self.output.schema or "json"
        if self.keep_alive is not None:
            body["keep_alive"] = self.keep_alive
        return body


def build(config: Ollama) -> Handler:
    async def ollama(job: Job, payload: dict[str, Any]) -> Any:
        messages = config.messages(payload)
        reader = _Reader(config)
        async with job.stage("generating", label=f"{config.model[:100]} is writing"):
            headers = {"Idempotency-Key": job.key}
            lines = JsonLines(config.endpoint.address)
            await ask(job, config, config.body(messages), headers, cutter=lines, reader=reader)
            # First: what is wrong with an answer to half a prompt does not matter any more.
            await _refuse_cut(job, config, messages, reader.prompt_tokens)
            return result(config, reader.reply)

    return ollama


class _Reader:
    """One line of the stream after the other."""

    def __init__(self, config: Ollama) -> None:
        self.reply = Reply()
        self.prompt_tokens: int | None = None
        """What the server counted of the prompt, with what it had in its cache where it says so."""
        self._address = config.endpoint.address
        self._local_only = config.endpoint.local_only

    def read(self, piece: bytes) -> tuple[str, bool]:
        line = parsed(piece, self._address)
        if "error" in line:
            raise interrupted(line, self._address)
        if self._local_only and line.get("remote_host"):
            raise ProviderError(
                f"the model at {self._address} does not run there: Ollama asks another host for "
                "it, and the queue is local_only. Use a model that was pulled, and set "
                "OLLAMA_NO_CLOUD=1 on that server",
                Signal(status=200, exception="remote_host", received=True, address=self._address),
            )
        message = line.get("message")
        said = message if isinstance(message, dict) else {}
        text = words(said.get("content"))
        alive = bool(text or said.get("thinking"))
        if line.get("done") is True:
            self._end(line)
        return text, alive

    def _end(self, line: Mapping[str, Any]) -> None:
        reply = self.reply
        reply.done = True
        reason = line.get("done_reason")
        reply.stop_reason = reason if isinstance(reason, str) else None
        reply.model = name(line.get("model"))
        prompt = usage.tokens(line.get("prompt_eval_count"))
        cached = usage.tokens(line.get("prompt_eval_cached_count"))
        self.prompt_tokens = None if prompt is None else prompt + (cached or 0)
        reply.used = usage.given(
            prompt_tokens=prompt,
            completion_tokens=usage.tokens(line.get("eval_count")),
            load_seconds=usage.seconds(line.get("load_duration")),
            prompt_seconds=usage.seconds(line.get("prompt_eval_duration")),
            completion_seconds=usage.seconds(line.get("eval_duration")),
        )


async def _refuse_cut(
    job: Job, config: Ollama, messages: list[dict[str, str]], counted: int | None
) -> None:
    """Refuse an answer to half a prompt."""
    texts = [message["content"] for message in messages]
    if not looks_cut(texts, counted):
        return
    address = config.endpoint.address
    if least_tokens(texts) <= config.num_ctx:
        # It should have fitted. Some versions leave out of the count what was in their cache; a
        # prompt that begins with something new is in no cache. One token is enough to see it.
        if (address, config.model) in _uncounted:
            return
        if not looks_cut(texts, await _count(job, config, messages)):
            _uncounted.add((address, config.model))
            return
    raise broken(
        "truncated_input",
        f"has read a part of the prompt only ({counted} tokens): give it a larger num_ctx, if the "
        "model has one, or a shorter text",
        address,
    )


async def _count(job: Job, config: Ollama, messages: list[dict[str, str]]) -> int | None:
    """The prompt's tokens as the server counts them when nothing of it is cached."""
    first, *rest = messages
    marked = {**first, "content": f"{secrets.token_hex(8)}\n{first['content']}"}
    body = config.body([marked, *rest])
    body.pop("format", None)
    body["options"]["num_predict"] = 1
    reader = _Reader(config)
    lines = JsonLines(config.endpoint.address)
    await ask(_Silent(job), config, body, {}, cutter=lines, reader=reader)
    return reader.prompt_tokens


class _Silent:
    """The same job, whose live stream does not hear what is said to it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._job, attribute)

    async def emit(self, data: Any) -> None:
        pass
