"""The handler of `handler = "openai"`: chat completions of OpenAI and compatible servers.

Some models reason for a minute or more before they send their first token; others stream their
reasoning, which counts as tokens here. So the first token may take 90 s by default. That is less
than a job's timeout (2m by default), so that a server that hangs is reported as such.
"""

from dataclasses import dataclass
from typing import Any

from penstock.models import chat, usage
from penstock.models.chat import Chat, Messages, Reply
from penstock.models.output import tables
from penstock.models.stream import Events
from penstock.net.endpoint import Endpoint
from penstock.security.secret import Secret

build = chat.build
STALL_SECONDS = chat.STALL_SECONDS
_PATH = "/chat/completions"
_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAI(Chat):
    api_key: Secret | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key.reveal()}"} if self.api_key else {}

    def body(self, messages: Messages) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": messages,
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

    def new_reply(self) -> Reply:
        return OpenAIReply(address=self.endpoint.address)


def endpoint_of(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint of chat completions, for an address with or without /v1."""
    path = endpoint.path.rstrip("/")
    if path.endswith(_PATH):
        return endpoint
    return endpoint.under(f"{path or '/v1'}{_PATH}")


class OpenAIReply(Reply):
    __slots__ = ()

    def lines(self) -> Events:
        return Events(self.address)

    def read(self, piece: bytes) -> tuple[str, bool]:
        if piece.strip() == _DONE:
            # Without a stop reason the answer is incomplete: some proxies send this line after a
            # failure.
            self.done = self.stop_reason is not None
            return "", False
        event = chat.parsed(piece, self.address)
        if event.get("error"):
            raise chat.interrupted(event, self.address)
        self.model = self.model or chat.name(event.get("model"))
        if isinstance(used := event.get("usage"), dict):
            details = used.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            self.used = usage.given(
                prompt_tokens=usage.tokens(used.get("prompt_tokens")),
                cached_tokens=usage.tokens(cached),
                completion_tokens=usage.tokens(used.get("completion_tokens")),
            )
        match event.get("choices"):
            case [{**choice}, *_]:
                pass
            case _:
                return "", False
        if isinstance(reason := choice.get("finish_reason"), str):
            self.stop_reason = reason
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return "", False
        text = chat.words(delta.get("content"))
        self.refused = self.refused or bool(delta.get("refusal"))
        return text, bool(text or any(delta.get(kind) for kind in _WORK))


# Parts beside the answer that show a working model: reasoning, under two names, and a refusal.
_WORK = ("reasoning_content", "reasoning", "refusal")


def is_strict(schema: Any) -> bool:
    """Return whether OpenAI accepts the schema as strict: no extra members, all required."""
    return all(
        table.get("additionalProperties") is False
        and set(table.get("required", ())) == set(table["properties"])
        for table in tables(schema)
        if isinstance(table.get("properties"), dict)
    )
