"""A request to the model and its answer, independent of a protocol."""

from dataclasses import dataclass, field
from typing import Any

from penstock.models.simulated.connection import Refusal
from penstock.models.simulated.options import Options

# For English text; a real tokenizer's count differs by about a fifth.
_CHARS_PER_TOKEN = 4
# The tokens that a chat template adds to each message.
_TOKENS_PER_MESSAGE = 4


@dataclass(slots=True)
class Ask:
    path: str
    model: str
    prompt: str  # all messages, one after the other
    stream: bool
    messages: int = 1
    limit: int | None = None  # the most tokens of the answer
    num_ctx: int | None = None  # None: the server's default
    truncate: bool = True  # cut a prompt that is too long instead of refusing it
    schema: Any = None  # a JSON schema, "json" for any object, None for text
    seed: int = 0
    include_usage: bool = False
    images: int = 0
    size: tuple[int, int] = (0, 0)

    @property
    def prompt_tokens(self) -> int:
        text = -(-len(self.prompt) // _CHARS_PER_TOKEN)
        return text + _TOKENS_PER_MESSAGE * self.messages


@dataclass(slots=True)
class Answer:
    tokens: list[str]
    finish: str = "stop"  # stop, length, content_filter, load
    prompt_tokens: Any = 0  # a fault may set any value; None: omitted
    completion_tokens: Any = 0
    refusal: str | None = None
    remote_host: str | None = None
    images: list[bytes] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.tokens)


@dataclass(frozen=True, slots=True)
class Spent:
    """Durations in nanoseconds, as Ollama reports them."""

    total: int
    prompt: int
    tokens: int


def read_model(model: Any, options: Options, *, missing: str, unknown: str) -> str:
    """Return the name of the model in a request; refuse a missing or unknown one."""
    if not isinstance(model, str) or not model:
        raise Refusal(400, missing)
    if not options.knows(model):
        raise Refusal(404, unknown.format(model), "model_not_found")
    return model
