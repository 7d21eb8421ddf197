"""The handler of `handler = "ollama"`, which calls Ollama's own `/api/chat`.

It does not use Ollama's OpenAI-compatible API: that API ignores `num_ctx`, so the length of a
prompt could not be guaranteed.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.models import chat, usage
from penstock.models.chat import Chat, Messages, Reply
from penstock.models.handlers.job import Job
from penstock.models.stream import Lines
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal

build = chat.build
STALL_SECONDS = chat.STALL_SECONDS
NUM_CTX = 8_192
NUM_PREDICT = 2_048

# Servers (address, model) that do not count cached tokens, as an earlier answer has shown.
_uncounted: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ollama(Chat):
    num_ctx: int = NUM_CTX
    num_predict: int = NUM_PREDICT
    keep_alive: float | str | None = None
    """For how many seconds the model stays loaded; below 0: for ever."""

    def body(self, messages: Messages) -> dict[str, Any]:
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

    def new_reply(self) -> Reply:
        return OllamaReply(address=self.endpoint.address, local_only=self.endpoint.local_only)

    async def check(self, job: Job, messages: Messages, reply: Reply) -> None:
        """Refuse an answer to only a part of the prompt.

        Ollama drops the beginning of a prompt that is too long and answers anyway: an essay is
        marked without its beginning. `truncate: false` forbids that, but older servers ignore it;
        then only the count of the prompt's tokens shows that text is missing.
        """
        texts = [message["content"] for message in messages]
        if not is_cut(texts, reply.prompt_tokens):
            return
        server = (reply.address, self.model)
        if least_tokens(texts) <= self.num_ctx:
            # The prompt should have fitted. Some versions do not count cached tokens. A prompt with
            # a random beginning is not in the cache, and an answer of one token is enough to get
            # its count.
            if server in _uncounted:
                return
            if not is_cut(texts, await self._count(job, messages)):
                _uncounted.add(server)
                return
        raise chat.broken(
            "truncated_input",
            f"read only a part of the prompt ({reply.prompt_tokens} tokens): raise num_ctx, if the"
            " model allows it, or shorten the text",
            reply.address,
        )

    async def _count(self, job: Job, messages: Messages) -> int | None:
        """Count the prompt's tokens on the server with an uncached copy of the prompt."""
        first, *rest = messages
        marked = {**first, "content": f"{secrets.token_hex(8)}\n{first['content']}"}
        body = self.body([marked, *rest])
        body.pop("format", None)
        body["options"]["num_predict"] = 1
        return (await chat.ask(job, self, body, {}, emit=False)).prompt_tokens


@dataclass(slots=True, kw_only=True)
class OllamaReply(Reply):
    local_only: bool

    def lines(self) -> Lines:
        return Lines(self.address)

    def read(self, piece: bytes) -> tuple[str, bool]:
        line = chat.parsed(piece, self.address)
        if "error" in line:
            raise chat.interrupted(line, self.address)
        if self.local_only and line.get("remote_host"):
            raise ProviderError(
                f"the model at {self.address} does not run on that server: Ollama forwards its "
                "requests to another host, and the queue is local_only. Use a model that was "
                "pulled, and set OLLAMA_NO_CLOUD=1 on that server",
                Signal(status=200, exception="remote_host", received=True, address=self.address),
            )
        message = line.get("message")
        content = message if isinstance(message, dict) else {}
        text = chat.words(content.get("content"))
        if line.get("done") is True:
            self.done = True
            reason = line.get("done_reason")
            self.stop_reason = reason if isinstance(reason, str) else None
            self.model = chat.name(line.get("model"))
            prompt = usage.tokens(line.get("prompt_eval_count"))
            cached = usage.tokens(line.get("prompt_eval_cached_count"))
            self.prompt_tokens = None if prompt is None else prompt + (cached or 0)
            self.used = usage.given(
                prompt_tokens=prompt,
                completion_tokens=usage.tokens(line.get("eval_count")),
                load_seconds=usage.seconds(line.get("load_duration")),
                prompt_seconds=usage.seconds(line.get("prompt_eval_duration")),
                completion_seconds=usage.seconds(line.get("eval_duration")),
            )
        return text, bool(text or content.get("thinking"))


# Chinese, Japanese, Korean: no spaces between words, and a token rarely holds more than four
# characters.
_IDEOGRAPHS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_PER_TOKEN = 4
# A comma or full stop at the end of a word is a separate token.
_STOPS = re.compile(r"\w[^\w\s]+(?=\s|$)")
# A count below this share of the minimum cannot be explained by a different tokenizer.
_SHARE = 0.9
# Shorter prompts are too short for this check.
_LEAST = 50


def least_tokens(texts: Sequence[str]) -> int:
    """Return the fewest tokens that these texts can have: no tokenizer joins two words."""
    spaced = sum(len(text.split()) + len(_STOPS.findall(text)) for text in texts)
    dense = sum(len(_IDEOGRAPHS.findall(text)) for text in texts) // _PER_TOKEN
    return max(spaced, dense)


def is_cut(texts: Sequence[str], counted: int | None) -> bool:
    """Return whether the count is too small for the texts. None and 0 mean that it is unknown."""
    least = least_tokens(texts)
    return bool(counted) and least >= _LEAST and (counted or 0) < _SHARE * least
