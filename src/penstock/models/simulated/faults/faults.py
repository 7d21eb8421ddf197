"""What can be wrong with a model, each as a value with a name: `status:code=503,retry_after=2`.

`refuse` closes the port. Some faults are bytes that go wrong on the way (`hang` to `empty`), the
others a well-formed answer that is not what was asked for (`wrong_usage` and below).
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

HTML = (
    "<!DOCTYPE html>\n<html><head><title>{title}</title></head>\n"
    "<body><center><h1>{title}</h1></center><hr><center>proxy</center></body></html>\n"
)


@dataclass(frozen=True, slots=True)
class Refuse:
    """The port is closed: nobody gets in, and who was in is thrown out."""

    name: ClassVar = "refuse"


@dataclass(frozen=True, slots=True)
class Hang:
    """Takes the call and never answers."""

    name: ClassVar = "hang"


@dataclass(frozen=True, slots=True)
class Delay:
    """Everything is right, and comes later than usual."""

    name: ClassVar = "delay"
    by: float = 5  # seconds


@dataclass(frozen=True, slots=True)
class HangMid:
    """Says some tokens, then nothing more."""

    name: ClassVar = "hang_mid"
    after: int = 3


@dataclass(frozen=True, slots=True)
class SlowBytes:
    """Everything is right and comes in drops of `size` bytes."""

    name: ClassVar = "slow_bytes"
    size: int = 1
    every: float = 0.02  # seconds


@dataclass(frozen=True, slots=True)
class HalfBody:
    """Closes the connection in the middle of a chunk, or of the body."""

    name: ClassVar = "half_body"
    after: int = 3


@dataclass(frozen=True, slots=True)
class Cut:
    """A stream that ends in good order, but before it said that it is done."""

    name: ClassVar = "cut"
    after: int = 3


@dataclass(frozen=True, slots=True)
class Reset:
    """Resets the connection: before the first byte, or `after` some tokens."""

    name: ClassVar = "reset"
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """Any status with any body and headers; unless given, the body a provider would send."""

    name: ClassVar = "status"
    code: int = 500
    body: Any = None  # text as it is, anything else as JSON
    content_type: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    retry_after: str | None = None


RetryAfter: TypeAlias = Literal[
    "seconds", "float", "date", "ms", "garbage", "negative", "none", "all"
]


@dataclass(frozen=True, slots=True)
class Storm:
    """Too many requests, or too much load, with one form of Retry-After; `all`: by turns."""

    name: ClassVar = "storm"
    code: int = 429
    form: RetryAfter = "all"
    after: float = 2  # seconds


@dataclass(frozen=True, slots=True)
class Quota:
    """Paid up, used up: the account is empty, in the ways that providers say so."""

    name: ClassVar = "quota"
    form: Literal["insufficient", "credit", "spend_limit", "anthropic", "billing"] = "insufficient"


@dataclass(frozen=True, slots=True)
class Html:
    """The page of some proxy in between."""

    name: ClassVar = "html"
    code: int = 502


@dataclass(frozen=True, slots=True)
class TruncatedJson:
    """A complete HTTP answer with half of its JSON."""

    name: ClassVar = "truncated_json"


@dataclass(frozen=True, slots=True)
class NotJson:
    name: ClassVar = "not_json"


@dataclass(frozen=True, slots=True)
class Empty:
    """200 and no byte of body, or an answer in good form without a word in it."""

    name: ClassVar = "empty"
    what: Literal["body", "text"] = "body"


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """An error inside a stream that began with 200; without a stream, a 500."""

    name: ClassVar = "error_line"
    after: int = 3
    message: str = "an error was encountered while running the model: unexpected EOF"


@dataclass(frozen=True, slots=True)
class WrongUsage:
    """Counts of tokens that cannot be."""

    name: ClassVar = "wrong_usage"
    form: Literal["negative", "missing", "absurd", "strings"] = "negative"


@dataclass(frozen=True, slots=True)
class Length:
    """The answer ends in the middle, for it was too long."""

    name: ClassVar = "length"


@dataclass(frozen=True, slots=True)
class Refuses:
    """The model will not talk about this."""

    name: ClassVar = "refusal"


@dataclass(frozen=True, slots=True)
class Truncation:
    """The front of the prompt is dropped, and nothing but a smaller count tells."""

    name: ClassVar = "truncation"


@dataclass(frozen=True, slots=True)
class RemoteHost:
    """The model was not here: Ollama asked its cloud."""

    name: ClassVar = "remote_host"
    host: str = "https://ollama.com:443"


@dataclass(frozen=True, slots=True)
class SchemaInvalid:
    """JSON, but not of the schema that was asked for."""

    name: ClassVar = "schema_invalid"


Fault: TypeAlias = (
    Refuse
    | Hang
    | Delay
    | HangMid
    | SlowBytes
    | HalfBody
    | Cut
    | Reset
    | Status
    | Storm
    | Quota
    | Html
    | TruncatedJson
    | NotJson
    | Empty
    | ErrorLine
    | WrongUsage
    | Length
    | Refuses
    | Truncation
    | RemoteHost
    | SchemaInvalid
)
FAULTS: dict[str, type[Fault]] = {kind.name: kind for kind in Fault.__args__}
