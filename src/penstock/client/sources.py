"""Where a job's dedupe key, topic, account and price come from: field, constant or function.

A field or a constant is declared to SQL, which then finds it for every caller. A function is the
app's own code: it is called at each submit, and plain SQL cannot submit such a kind.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.base.suggestions import did_you_mean
from penstock.client.prices import Price, Split, price_of, read_cost
from penstock.engine.encoding.encode import encode
from penstock.engine.options.forms import TEXT_MAX, Text, wrong
from penstock.errors import Invalid
from penstock.models.handlers.parameters import Parameters


@dataclass(frozen=True, slots=True)
class Constant:
    """One value for all jobs of a kind: `@app.job(account=Constant("house"))`."""

    value: str


Source = str | Constant | Callable[[dict[str, Any]], str | int | None]
"""The name of a parameter; a constant; or a function of the payload."""

OPTIONS = ("dedupe", "topic", "account")
# What they say, by field of a job.
_FIELDS = {"dedupe": "dedupe_key", "topic": "topic", "account": "account", "price": "price"}


@dataclass(frozen=True, slots=True)
class Sources:
    """Those of one kind."""

    declared: dict[str, Any]
    """As `declare_kind` takes them."""
    computed: Mapping[str, Callable[[dict[str, Any]], Any]]
    filled: Mapping[str, Any]
    """Defaults of the fields among them: SQL reads the payload, and knows no defaults."""

    def complete(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The payload with those fields in it that a key is read from."""
        return {**self.filled, **payload} if self.filled else payload

    def compute(self, payload: dict[str, Any], *, index: int = 0) -> dict[str, str | int]:
        """What the functions say for one payload, by field of the job."""
        found: dict[str, str | int] = {}
        for field, function in self.computed.items():
            if field == "price":
                found[field] = price_of(function, payload, index)
                continue
            value = function(payload)
            if isinstance(value, int) and not isinstance(value, bool):
                value = str(value)
            if value is None:
                continue
            if not isinstance(value, str):
                raise Invalid(
                    f"the function for {field} must answer a text, a number or None, not "
                    f"{type(value).__name__}",
                    code="invalid_job",
                    field=field,
                    index=index,
                )
            found[field] = value
        return found


def read_sources(
    parameters: Parameters,
    *,
    price: Price | None = None,
    split: Split | None = None,
    **said: Source | None,
) -> Sources:
    """What `@app.job(dedupe=…, topic=…, account=…, price=…, split=…)` means for a handler."""
    declared: dict[str, Any] = {}
    computed: dict[str, Callable[[dict[str, Any]], Any]] = {}
    for option, source in said.items():
        match source:
            case None:
                continue
            case str() if source in parameters.names:
                declared[f"{option}_field"] = source
            case str():
                raise _names_nothing(option, source, parameters.names)
            case Constant():
                # None would pass as "nothing was said".
                declared[option] = Text().read(source.value or "", option)
            case _ if _is_plain_function(source):
                computed[_FIELDS[option]] = source
            case _:
                raise wrong(
                    option,
                    source,
                    'it may be the name of a parameter, Constant("…"), or a plain function of the '
                    "payload",
                )
    cost = read_cost(parameters, price, split)
    if split is not None and said.get("dedupe") is not None:
        raise wrong(
            "split", split, "it excludes dedupe: a batch of several jobs is not one live job"
        )
    if cost.function is not None:
        computed["price"] = cost.function
    if computed:
        declared["computed"] = [option for option in _FIELDS if _FIELDS[option] in computed]
    fields = [declared[f"{option}_field"] for option in OPTIONS if f"{option}_field" in declared]
    filled = _defaults(parameters, [*fields, *cost.fields])
    return Sources({**declared, **cost.declared}, computed, filled)


def _names_nothing(option: str, name: str, known: tuple[str, ...]) -> Invalid:
    """A text that is no parameter: read as a constant, it would make all jobs the same one's."""
    allowed = f"as a text it names a parameter, and known are {', '.join(known) or 'none'}."
    allowed += did_you_mean(name, known)
    if 1 <= len(name) <= TEXT_MAX:
        allowed += f" For one value in all jobs say {option}=Constant({name!r})"
        allowed += f", in TOML {option} = {{ constant = {json.dumps(name)} }}"
    return wrong(option, name, allowed)


def _defaults(parameters: Parameters, fields: list[str]) -> dict[str, Any]:
    found = {}
    for field in fields:
        value = parameters.defaults.get(field)
        if value is not None:
            encode(value, field)  # refused now rather than at each submit
            found[field] = value
    return found


def _is_plain_function(source: Any) -> bool:
    return callable(source) and not inspect.iscoroutinefunction(source)
