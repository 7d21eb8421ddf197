"""OpenAI's protocol: `/v1/chat/completions`, `/v1/models`, `/v1/images/generations`."""

import base64
import json
import time
import uuid
from typing import Any

from penstock.models.simulated.connection import Refusal
from penstock.models.simulated.options import Options
from penstock.models.simulated.request import Answer, Ask, Spent, read_model

CHAT, IMAGES = "/v1/chat/completions", "/v1/images/generations"
TOO_LONG = (
    "This model's maximum context length is {window} tokens. However, your messages resulted in"
    " {tokens} tokens."
)
_MOST_IMAGES = 10
_SMALLEST, _LARGEST = 1, 4_096
_QUALITIES = ("auto", "low", "medium", "high", "standard", "hd")
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    429: "requests",
}


class OpenAI:
    """The encoder of answers to one call for a chat completion or for pictures."""

    stream_type = "text/event-stream"

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self._created = int(time.time())
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        head = self._head("chat.completion.chunk")
        # With `include_usage` every piece has the member, and only the last one has a value in it.
        usage = ', "usage": null' if ask.include_usage else ""
        self._before = f'data: {json.dumps(head)[:-1]}{usage}, "choices": [{{"index": 0, "delta": '
        self._after = ', "finish_reason": null}]}\n\n'

    def first(self) -> bytes:
        return self._delta({"role": "assistant", "content": "", "refusal": None})

    def token(self, text: str) -> bytes:
        return self._delta({"content": text})

    def _delta(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        after = self._after if finish is None else f', "finish_reason": "{finish}"}}]}}\n\n'
        return f"{self._before}{json.dumps(delta, ensure_ascii=False)}{after}".encode()

    def last(self, answer: Answer, _spent: Spent) -> bytes:
        sent = b""
        if answer.refusal is not None:
            sent = self._delta({"refusal": answer.refusal})
        sent += self._delta({}, answer.finish)
        if self.ask.include_usage:
            head = self._head("chat.completion.chunk")
            total = {**head, "choices": [], "usage": _usage(answer)}
            sent += b"data: " + json.dumps(total).encode() + b"\n\n"
        return sent + b"data: [DONE]\n\n"

    def whole(self, answer: Answer, _spent: Spent) -> bytes:
        if self.ask.images:
            return self._pictures(answer)
        message = {
            "role": "assistant",
            "content": answer.text if answer.refusal is None else None,
            "refusal": answer.refusal,
        }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": answer.finish,
        }
        fields = {**self._head("chat.completion"), "choices": [choice]}
        if (usage := _usage(answer)) is not None:
            fields["usage"] = usage
        return json.dumps(fields, ensure_ascii=False).encode()

    def _pictures(self, answer: Answer) -> bytes:
        fields: dict[str, Any] = {
            "created": self._created,
            "data": [{"b64_json": base64.b64encode(image).decode()} for image in answer.images],
        }
        if (usage := _usage(answer)) is not None:
            fields["usage"] = {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"text_tokens": usage["prompt_tokens"], "image_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "total_tokens": usage["total_tokens"],
            }
        return json.dumps(fields).encode()

    def error_line(self, message: str) -> bytes:
        return b"data: " + error(500, message, None) + b"\n\n"

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self.ask.model,
            "system_fingerprint": "fp_simulated",
        }


def _usage(answer: Answer) -> dict[str, Any] | None:
    if answer.prompt_tokens is None:
        return None
    total = answer.prompt_tokens
    if isinstance(total, int) and isinstance(answer.completion_tokens, int):
        total += answer.completion_tokens
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": total,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def error(status: int, message: str, code: str | None, kind: str | None = None) -> bytes:
    kind = kind or _TYPES.get(status, "server_error")
    fields = {"message": message, "type": kind, "param": None, "code": code}
    return json.dumps({"error": fields}).encode()


def pictures_refused() -> bytes:
    """Return the error for refused pictures; a refused chat is an answer with a refusal."""
    return error(
        400,
        "Your request was rejected as a result of our safety system.",
        "content_policy_violation",
        "image_generation_user_error",
    )


def read(path: str, fields: dict[str, Any], options: Options) -> Ask:
    """Read the request of a call."""
    model = read_model(
        fields.get("model"),
        options,
        missing="you must provide a model parameter",
        unknown="The model `{}` does not exist or you do not have access to it.",
    )
    return _images(fields, model) if path == IMAGES else _chat(fields, model)


def _chat(fields: dict[str, Any], model: str) -> Ask:
    messages = fields.get("messages")
    if (
        not isinstance(messages, list)
        or not messages
        or not all(isinstance(message, dict) for message in messages)
    ):
        raise Refusal(400, "'messages' must be a list of at least one object")
    texts = [_text(message.get("content")) for message in messages]
    limit = fields.get("max_completion_tokens") or fields.get("max_tokens")
    usage = fields.get("stream_options") or {}
    seed = fields.get("seed")
    return Ask(
        path=CHAT,
        model=model,
        prompt="\n".join(texts),
        messages=len(texts),
        stream=fields.get("stream") is True,
        limit=limit if isinstance(limit, int) else None,
        schema=_schema(fields.get("response_format")),
        seed=seed if isinstance(seed, int) else 0,
        include_usage=isinstance(usage, dict) and usage.get("include_usage") is True,
    )


def _images(fields: dict[str, Any], model: str) -> Ask:
    prompt = fields.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise Refusal(400, "you must provide a prompt", "invalid_value")
    count, size = fields.get("n"), fields.get("size") or "auto"
    count = 1 if count is None else count
    if type(count) is not int or not 1 <= count <= _MOST_IMAGES:
        raise Refusal(400, f"'n' must be from 1 to {_MOST_IMAGES}", "invalid_value")
    width, by, height = ("1024x1024" if size == "auto" else str(size)).partition("x")
    if not (by and width.isdecimal() and height.isdecimal()) or not all(
        _SMALLEST <= int(side) <= _LARGEST for side in (width, height)
    ):
        raise Refusal(400, "'size' must be WIDTHxHEIGHT, like 1024x1024", "invalid_value")
    if (quality := fields.get("quality") or "auto") not in _QUALITIES:
        raise Refusal(400, f"'quality' must be one of {', '.join(_QUALITIES)}", "invalid_value")
    if (form := fields.get("response_format") or "b64_json") != "b64_json":
        raise Refusal(400, f"'response_format' must be b64_json here, not {form}", "invalid_value")
    seed = fields.get("seed")  # not OpenAI's; servers of open models have it
    return Ask(
        path=IMAGES,
        model=model,
        prompt=prompt,
        stream=False,
        images=count,
        size=(int(width), int(height)),
        # Each quality gives a different picture, as with a real model.
        seed=(seed if isinstance(seed, int) else 0) * len(_QUALITIES) + _QUALITIES.index(quality),
    )


def _text(content: Any) -> str:
    """Return a message's text, which is one text or a list of parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(str(part) for part in parts if part)
    return str(content or "")


def _schema(response_format: Any) -> Any:
    if not isinstance(response_format, dict):
        return None
    if response_format.get("type") == "json_schema":
        described = response_format.get("json_schema")
        if not isinstance(described, dict) or not isinstance(described.get("schema"), dict):
            raise Refusal(400, "Missing required parameter: 'response_format.json_schema.schema'.")
        return described["schema"]
    return "json" if response_format.get("type") == "json_object" else None


def models(options: Options) -> dict[str, Any]:
    listed = [
        {"id": name, "object": "model", "created": 1_767_225_600, "owned_by": "penstock"}
        for name in options.listed
    ]
    return {"object": "list", "data": listed}
