"""The handler of `handler = "openai"`: chat completions, OpenAI's and of all alike.

Some models think for a minute and more before their first token and say nothing meanwhile; others
stream their thoughts, which count as tokens here. So the first may take 90 s unless said: less than
a job's time-out (2m unless said), so that a server that hangs is seen as such.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.models import usage
from penstock.models.chat import Chat, Reply, ask, interrupted, name, parsed, result, words
from penstock.models.handlers.protocols import Handler, Job
from penstock.models.stream import Events
from penstock.net.endpoint import Endpoint
from penstock.security.secret import Secret

STALL_SECONDS = 30.0
_PATH = "/chat/completions"
_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAI(Chat):
    api_key: Secret | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    seed: int | None = None
    first_token_seconds: float | None = None
    stall_seconds: float = STALL_SECONDS

    def body(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": self.messages(payload),
            "stream": True,
            "stream_options": {"include_usage": True},
            **usage.given(
                temperature=self.temperature,
                max_tokens=self.max_tokens,
                max_completion_tokens=self.max_completion_tokens,
                seed=self.seed,
            ),
        }
        if self.output.schema is not None:
            schema = {
                "name": "answer",
                "schema": self.output.schema,
                "strict": is_strict(self.output.schema),
            }
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif self.output.json:
            body["response_format"] = {"type": "json_object"}
        return body


def endpoint_of(endpoint: Endpoint) -> Endpoint:
    """Where chats are completed, whether the address is given with /v1 or without."""
    path = endpoint.path.rstrip("/")
    if path.endswith(_PATH):
        return endpoint
    return endpoint.under(f"{path or '/v1'}{_PATH}")


def build(config: OpenAI) -> Handler:
    async def openai(job: Job, payload: dict[str, Any]) -> Any:
        reader = _Reader(config.endpoint.address)
        async with job.stage("generating", label=f"{config.model[:100]} is writing"):
            headers = {"Idempotency-Key": job.key}
            if config.api_key is not None:
                headers["Authorization"] = f"Bearer {config.api_key.reveal()}"
            events = Events(config.endpoint.address)
            await ask(job, config, config.body(payload), headers, cutter=events, reader=reader)
            return result(config, reader.reply)

    return openai


class _Reader:
    """One event of the stream after the other."""

    def __init__(self, address: str) -> None:
        self.reply = Reply()
        self._address = address

    def read(self, piece: bytes) -> tuple[str, bool]:
        reply = self.reply
        if piece.strip() == _DONE:
            # Without a reason it ended for none: some proxies send this after a failure.
            reply.done = reply.stop_reason is not None
            return "", False
        event = parsed(piece, self._address)
        if event.get("error"):
            raise interrupted(event, self._address)
        reply.model = reply.model or name(event.get("model"))
        self._use(event.get("usage"))
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return "", False
        if isinstance(reason := choice.get("finish_reason"), str):
            reply.stop_reason = reason
        delta = choice.get("delta")
        said: dict[str, Any] = delta if isinstance(delta, dict) else {}
        text = words(said.get("content"))
        reply.refused = reply.refused or bool(said.get("refusal"))
        alive = bool(text or any(said.get(kind) for kind in _WORK))
        return text, alive

    def _use(self, said: Any) -> None:
        if isinstance(said, dict):
            details = said.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            self.reply.used = usage.given(
                prompt_tokens=usage.tokens(said.get("prompt_tokens")),
                cached_tokens=usage.tokens(cached),
                completion_tokens=usage.tokens(said.get("completion_tokens")),
            )


# What shows a model at work beside its answer: thoughts, under two names, and a refusal.
_WORK = ("reasoning_content", "reasoning", "refusal")


def is_strict(schema: Any) -> bool:
    """Whether OpenAI takes it as strict: every object closed, and each of its members required."""
    todo = [schema]
    while todo:
        match todo.pop():
            case dict() as table:
                members = table.get("properties")
                if isinstance(members, dict) and (
                    table.get("additionalProperties") is not False
                    or set(table.get("required", ())) != set(members)
                ):
                    return False
                todo.extend(table.values())
            case list() as items:
                todo.extend(items)
            case _:
                pass
    return True
