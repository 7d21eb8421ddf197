"""Ollama's protocol: `/api/...`, lines of JSON, durations in nanoseconds.

The messages follow Ollama's documentation. Tests with them show how Penstock handles these
messages, not what a real Ollama does: for that, point a handler at a real one.
"""

import json
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from penstock.models.simulated.connection import Refusal
from penstock.models.simulated.options import Options, tagged
from penstock.models.simulated.request import Answer, Ask, Spent, read_model

LINE_FULL = "server busy, please try again.  maximum pending requests exceeded"
TOO_LONG = "the input length exceeds the context length"
VERSION = "0.12.6"
_KEEP_ALIVE = timedelta(minutes=5)
_SIZE = 4_661_224_676
_DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "8.0B",
    "quantization_level": "Q4_0",
}


class Ollama:
    """The encoder of answers to one call of `/api/chat` or `/api/generate`."""

    stream_type = "application/x-ndjson"

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self._chat = ask.path == "/api/chat"
        # Encoded once for all tokens of the answer: only the text in the middle differs.
        begin = json.dumps({"model": ask.model, "created_at": _now()})[:-1]
        if self._chat:
            self._before = f'{begin}, "message": {{"role": "assistant", "content": '
            self._after = '}, "done": false}\n'
        else:
            self._before, self._after = f'{begin}, "response": ', ', "done": false}\n'

    def first(self) -> bytes:
        return b""

    def token(self, text: str) -> bytes:
        return f"{self._before}{json.dumps(text, ensure_ascii=False)}{self._after}".encode()

    def last(self, answer: Answer, spent: Spent) -> bytes:
        return self._end(answer, "", spent) + b"\n"

    def whole(self, answer: Answer, spent: Spent) -> bytes:
        return self._end(answer, answer.text, spent)

    def error_line(self, message: str) -> bytes:
        return error(message) + b"\n"

    def _end(self, answer: Answer, text: str, spent: Spent) -> bytes:
        fields: dict[str, Any] = {"model": self.ask.model}
        if answer.remote_host is not None:
            fields |= {"remote_model": self.ask.model, "remote_host": answer.remote_host}
        fields["created_at"] = _now()
        if self._chat:
            fields["message"] = {"role": "assistant", "content": text}
        else:
            fields["response"] = text
        fields |= {"done": True, "done_reason": answer.finish}
        if answer.finish == "load":
            return json.dumps(fields).encode()
        if not self._chat:
            fields["context"] = [1, 2, 3]
        fields |= {"total_duration": spent.total, "load_duration": 1_000_000}
        if answer.prompt_tokens is not None:
            fields["prompt_eval_count"] = answer.prompt_tokens
        fields["prompt_eval_duration"] = spent.prompt
        if answer.completion_tokens is not None:
            fields["eval_count"] = answer.completion_tokens
        fields["eval_duration"] = spent.tokens
        return json.dumps(fields, ensure_ascii=False).encode()


def error(message: str) -> bytes:
    return json.dumps({"error": message}).encode()


def read(path: str, fields: dict[str, Any], options: Options) -> Ask:
    """Read the request of a call of `/api/chat` or `/api/generate`."""
    model = _known(fields.get("model"), options)
    if path == "/api/chat":
        messages = fields.get("messages") or []
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise Refusal(400, "messages must be a list of objects")
        texts = [str(message.get("content") or "") for message in messages]
    else:
        texts = [str(fields[name]) for name in ("system", "prompt") if fields.get(name)]
    chosen = fields.get("options") or {}
    if not isinstance(chosen, dict):
        raise Refusal(400, "options must be an object")
    limit = _whole(chosen, "num_predict")
    return Ask(
        path=path,
        model=model,
        prompt="\n".join(texts),
        messages=len(texts),
        stream=fields.get("stream", True) is not False,
        limit=None if limit is None or limit < 0 else limit,
        num_ctx=_whole(chosen, "num_ctx"),
        truncate=fields.get("truncate", True) is not False,
        schema=fields.get("format") or None,
        seed=_whole(chosen, "seed") or 0,
    )


def _known(model: Any, options: Options) -> str:
    return read_model(model, options, missing="model is required", unknown="model '{}' not found")


def _whole(chosen: dict[str, Any], name: str) -> int | None:
    value = chosen.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refusal(400, f'option "{name}" must be of type integer')
    return int(value)


def tags(options: Options) -> dict[str, Any]:
    return {"models": [_model(name) for name in options.listed]}


def ps(loaded: dict[str, datetime], options: Options) -> dict[str, Any]:
    """List the models that answered within the time for which Ollama keeps them loaded."""
    now = datetime.now(UTC)
    return {
        "models": [
            {
                **_model(name),
                "expires_at": (at + _KEEP_ALIVE).isoformat(),
                "size_vram": _SIZE,
                "context_length": options.num_ctx,
            }
            for name, at in loaded.items()
            if at + _KEEP_ALIVE > now
        ]
    }


def show(fields: dict[str, Any], options: Options) -> dict[str, Any]:
    name = _known(fields.get("model") or fields.get("name"), options)
    return {
        "modelfile": f"FROM {name}",
        "parameters": f"num_ctx {options.num_ctx}",
        "template": "{{ .Prompt }}",
        "details": _DETAILS,
        "model_info": {"general.architecture": "llama", "llama.context_length": options.num_ctx},
        "capabilities": ["completion"],
        "modified_at": _SINCE,
    }


_SINCE = "2026-01-01T00:00:00Z"


def _model(name: str) -> dict[str, Any]:
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": _SINCE,
        "size": _SIZE,
        "digest": sha256(name.encode()).hexdigest(),
        "details": _DETAILS,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
