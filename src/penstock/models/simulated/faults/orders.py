"""The faults of a model, and orders that apply them to calls: `status:code=503,times=2`."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, NoReturn

from pydantic import TypeAdapter, ValidationError

from penstock.base.settings import duration
from penstock.errors import Invalid
from penstock.models.simulated.request import Ask

Match = Callable[[Ask], bool]
# The members of an order beside the fault's parameters.
_TERMS = ("times", "seconds", "path", "chance", "contains")
_AFTER_TOKENS = (int, 3)

FAULTS: dict[str, dict[str, tuple[Any, Any]]] = {
    # The port is closed: connections are refused, and open ones are reset.
    "refuse": {},
    # Accepts the call and never answers.
    "hang": {},
    # A correct answer that comes so many seconds later than usual.
    "delay": {"by": (float, 5.0)},
    # Sends some tokens, then nothing more.
    "hang_mid": {"after": _AFTER_TOKENS},
    # A correct answer in pieces of `size` bytes, with a pause of `every` seconds between them.
    "slow_bytes": {"size": (int, 1), "every": (float, 0.02)},
    # Closes the connection in the middle of a chunk, or of the body.
    "half_body": {"after": _AFTER_TOKENS},
    # A stream that is closed in good order, but before the final message.
    "cut": {"after": _AFTER_TOKENS},
    # Resets the connection: before the first byte, or `after` some tokens.
    "reset": {"after": (int | None, None)},
    # Any status with any body (a text unchanged, anything else as JSON) and headers. Without a
    # body, the one that a provider would send.
    "status": {
        "code": (int, 500),
        "body": (Any, None),
        "content_type": (str | None, None),
        "headers": (dict[str, str], {}),
        "retry_after": (str | None, None),
    },
    # Too many requests, or too much load, with one form of Retry-After; `all`: in turn.
    "storm": {
        "code": (int, 429),
        "form": (
            Literal["seconds", "float", "date", "ms", "garbage", "negative", "none", "all"],
            "all",
        ),
        "after": (float, 2.0),
    },
    # The account is empty, in each form in which providers report it.
    "quota": {
        "form": (
            Literal["insufficient", "credit", "spend_limit", "anthropic", "billing"],
            "insufficient",
        )
    },
    # The error page of a proxy.
    "html": {"code": (int, 502)},
    # A complete HTTP answer with half of its JSON.
    "truncated_json": {},
    "not_json": {},
    # Status 200 and no body, or a well-formed answer without text.
    "empty": {"what": (Literal["body", "text"], "body")},
    # An error inside a stream that began with 200; without a stream, a 500.
    "error_line": {
        "after": _AFTER_TOKENS,
        "message": (str, "an error was encountered while running the model: unexpected EOF"),
    },
    # The following faults send a well-formed but wrong answer. Impossible token counts:
    "wrong_usage": {"form": (Literal["negative", "missing", "absurd", "strings"], "negative")},
    # The answer is cut off because it is too long.
    "length": {},
    # The model refuses to answer.
    "refusal": {},
    # The beginning of the prompt is dropped, and only a smaller token count shows it.
    "truncation": {},
    # The model ran elsewhere: Ollama forwarded the request to its cloud.
    "remote_host": {"host": (str, "https://ollama.com:443")},
    # JSON that does not fit the requested schema.
    "schema_invalid": {},
}
"""The parameters of each fault by its name: type and default."""


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    parameters: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Order:
    fault: Fault
    times: int | None = None  # None: until healed
    seconds: float | None = None
    path: str | None = None  # a part of the path; None: every call for an answer
    chance: float = 1
    contains: str | None = None  # a text that the prompt must contain
    match: Match | None = None
    until: float | None = None

    def fits(self, path: str, ask: Ask | None) -> bool:
        if self.path is not None and self.path not in path:
            return False
        if ask is None:
            return self.path is not None and self.contains is None and self.match is None
        return (self.contains is None or self.contains in ask.prompt) and (
            self.match is None or self.match(ask)
        )


class Orders:
    """The pending faults; a call gets the oldest one that fits it."""

    def __init__(self, seed: int = 0) -> None:
        self._orders: list[Order] = []
        self._random = Random(seed)  # noqa: S311  # repeatable, not secret

    def add(self, order: Order) -> None:
        if order.seconds is not None:
            order.until = time.monotonic() + order.seconds
        self._orders.append(order)

    def clear(self) -> None:
        self._orders.clear()

    def take(self, path: str, ask: Ask | None) -> Fault | None:
        """Return the fault for this call. `ask` is None for calls that request no answer."""
        now = time.monotonic()
        self._orders = [o for o in self._orders if o.until is None or o.until > now]
        for order in self._orders:
            if order.fits(path, ask) and self._random.random() < order.chance:
                if order.times is not None:
                    order.times -= 1
                    if order.times == 0:
                        self._orders.remove(order)
                return order.fault
        return None

    def report(self) -> list[dict[str, Any]]:
        """Describe the orders, without `contains`: it may hold a person's text."""
        return [
            {
                "fault": order.fault.name,
                "times": order.times,
                "path": order.path,
                "chance": order.chance,
            }
            for order in self._orders
        ]


def order_written(text: str) -> Order:
    """Read an order as people write it: `status:code=503,times=2`, or a JSON object."""
    if not text.lstrip().startswith("{"):
        return order_from({"fault": text})
    try:
        return order_from(json.loads(text))
    except ValueError:
        _refuse("fault", "begins like JSON but is not valid JSON")


def order_from(fields: Mapping[str, Any], match: Match | None = None) -> Order:
    """Read an order from its fields: `fault`, the fault's parameters, and when it applies."""
    written = fields.get("fault")
    if not isinstance(written, str):
        _refuse("fault", f"is missing; it may be {', '.join(FAULTS)}")
    name, _, rest = written.partition(":")
    given: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            _refuse("fault", f"has {pair!r}; parameters are written as NAME:key=value,key=value")
        given[key.strip()] = value.strip()
    given |= {key: value for key, value in fields.items() if key != "fault"}
    terms = {key: given.pop(key) for key in _TERMS if given.get(key) is not None}
    parameters = {key: value for key, value in given.items() if key not in _TERMS}
    return Order(fault=_fault(name.strip(), parameters), match=match, **_read_terms(terms))


def _read_terms(terms: dict[str, Any]) -> dict[str, Any]:
    """Convert the terms, which say when an order applies, to their types."""
    read: dict[str, Any] = {key: str(terms[key]) for key in ("path", "contains") if key in terms}
    try:
        read |= {key: kind(terms[key]) for key, kind in _NUMBERS.items() if key in terms}
    except (TypeError, ValueError):
        _refuse("times, chance", "must be numbers")
    if read.get("times", 1) < 1:
        _refuse("times", "must be 1 or more")
    if not 0 < read.get("chance", 1) <= 1:
        _refuse("chance", "must be more than 0, and 1 at most")
    if "seconds" in terms:
        read["seconds"] = duration(terms["seconds"], field="seconds").total_seconds()
    return read


_NUMBERS: dict[str, Callable[[Any], float]] = {"times": int, "chance": float}


def _fault(name: str, given: Mapping[str, Any]) -> Fault:
    known = FAULTS.get(name)
    if known is None:
        _refuse("fault", f"is {name!r}; it may be {', '.join(FAULTS)}")
    parameters = {key: default for key, (_, default) in known.items()}
    for key, value in given.items():
        if key not in known:
            _refuse(f"{name}.{key}", f"is not known; it takes {', '.join((*known, *_TERMS))}")
        try:
            parameters[key] = TypeAdapter(known[key][0]).validate_python(value)
        except ValidationError as wrong:
            _refuse(f"{name}.{key}", f"is wrong: {wrong.errors()[0]['msg']}")
    return Fault(name, parameters)


def _refuse(field: str, why: str) -> NoReturn:
    raise Invalid(f"{field} {why}", code="invalid_fault", field=field)
