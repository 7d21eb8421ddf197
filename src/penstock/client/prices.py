"""What a job costs, and how large requests are split: `price` and `split` of `@app.job`.

A number, a field or a table is told to SQL, which then finds the price for every caller. A function
is the app's own code: it is called at each submit, and plain SQL cannot submit such a kind.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.engine.encoding.encode import CREDITS_MAX
from penstock.engine.jobs.jobs import refuse_odd_price
from penstock.engine.options.forms import TEXT_MAX, wrong
from penstock.errors import Invalid
from penstock.models.handlers.parameters import Parameters


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter by name: `price=Field("cost", trusted=True)`."""

    name: str
    trusted: bool = False
    """Only the app's own backend submits, so what the field says may be the price."""


Price = int | Field | Mapping[str, int | str | bool] | Callable[[dict[str, Any]], int]
"""Credits; a table of them; a function of the payload; or a trusted parameter that holds them."""
Split = tuple[str, int]
"""A parameter that counts or lists something, and how much of it one job takes at most."""

_TABLE = '{"per": "images", "by": "quality", "standard": 1, "high": 3}'
_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Cost:
    """Price and split of one kind."""

    declared: dict[str, Any] = field(default_factory=dict)
    """As `declare_kind` takes them."""
    function: Callable[[dict[str, Any]], Any] | None = None
    fields: tuple[str, ...] = ()
    """The payload's fields that SQL reads for it."""


def read_cost(parameters: Parameters, price: Any, split: Any) -> Cost:
    """What `@app.job(price=…, split=…)` means for a handler with these parameters."""
    declared, function, fields = _price(parameters, price)
    if split is not None:
        counted, most = _split(parameters, split)
        declared |= {"split_field": counted, "split_most": most}
        fields = (*fields, counted)
    return Cost(declared, function, fields)


def price_of(function: Callable[[dict[str, Any]], Any], payload: dict[str, Any], index: int) -> int:
    """What the app's function says a payload costs."""
    price = function(payload)
    if not isinstance(price, int) or isinstance(price, bool):
        raise Invalid(
            f"the function for price must answer a whole number from 0 to {CREDITS_MAX}, not "
            f"{type(price).__name__}",
            code="invalid_job",
            field="price",
            index=index,
        )
    refuse_odd_price(price, index)
    return price


def _price(
    parameters: Parameters, price: Any
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], Any] | None, tuple[str, ...]]:
    match price:
        case None:
            return {}, None, ()
        case bool():
            pass
        case int() if 0 <= price <= CREDITS_MAX:
            return {"price": price}, None, ()
        case str():
            raise _untrusted(parameters, price)
        case Field():
            return _from_field(parameters, price.name, trusted=price.trusted)
        case Mapping() if "field" in price and not {"per", "by"} & price.keys():
            return _from_mapping(parameters, price)
        case Mapping():
            return {"price": dict(price)}, None, _table(parameters, price)
        case _ if callable(price) and not inspect.iscoroutinefunction(price):
            return {}, price, ()
        case _:
            pass
    raise wrong(
        "price",
        price,
        f"it may be a whole number from 0 to {CREDITS_MAX}, a table like {_TABLE}, a plain "
        'function of the payload, or Field("…", trusted=True)',
    )


def _from_mapping(
    parameters: Parameters, price: Mapping[Any, Any]
) -> tuple[dict[str, Any], None, tuple[str, ...]]:
    """As `penstock.toml` writes a field."""
    trusted = price.get("trusted", False)
    if not isinstance(trusted, bool) or price.keys() - {"field", "trusted"}:
        raise wrong(
            "price", dict(price), 'a field is written as {"field": "cost", "trusted": true}'
        )
    return _from_field(parameters, price["field"], trusted=trusted)


def _from_field(
    parameters: Parameters, name: Any, *, trusted: bool
) -> tuple[dict[str, Any], None, tuple[str, ...]]:
    if not trusted or not isinstance(name, str) or name not in parameters.names:
        raise _untrusted(parameters, name)
    return {"price": {"field": name, "trusted": True}}, None, (name,)


def _untrusted(parameters: Parameters, name: Any) -> Invalid:
    """Whoever submits a job writes its payload, and could make it free."""
    if not isinstance(name, str) or name not in parameters.names:
        known = ", ".join(parameters.names) or "none"
        return wrong("price", name, f"it names a parameter, and known are {known}")
    return Invalid(
        f"price is taken from the parameter {name}, so whoever submits the job could set it to 0",
        code="invalid_option",
        field="price",
        hint="Give a number, a table or a function of the payload. If only your own backend submits"
        f' this kind, say so: price=Field("{name}", trusted=True), in TOML price = {{ field = '
        f'"{name}", trusted = true }}; keys of accounts are then refused.',
    )


def _table(parameters: Parameters, table: Mapping[Any, Any]) -> tuple[str, ...]:
    """The fields that a table reads; whatever is odd about it is refused by name."""
    fields = {key: table[key] for key in ("per", "by") if key in table}
    for key, named in fields.items():
        if not isinstance(named, str) or named not in parameters.names:
            known = ", ".join(parameters.names) or "none"
            raise _odd_table(f"{key} must name a parameter, and known are {known}")
    prices = {key: value for key, value in table.items() if key not in fields}
    said = _misshapen(fields, prices)
    if said is not None:
        raise _odd_table(said)
    for key, value in prices.items():
        if not isinstance(key, str) or not 1 <= len(key) <= TEXT_MAX or "\x00" in key:
            raise _odd_table(f"a value of by must be a text of 1 to {TEXT_MAX} characters")
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= CREDITS_MAX:
            raise _odd_table(f"{key} must be a whole number from 0 to {CREDITS_MAX}")
    return tuple(fields.values())


def _misshapen(fields: Mapping[str, str], prices: Mapping[Any, Any]) -> str | None:
    if not fields:
        return f"it needs per or by, or both, like {_TABLE}"
    if "by" not in fields:
        if set(prices) == {"each"}:
            return None
        return 'without by it has per and each alone, like {"per": "images", "each": 2}'
    if "each" in prices:
        return f"each excludes by: name a price for each value of {fields['by']}"
    if not prices:
        return f"it has no price for any value of {fields['by']}: like {_TABLE}"
    return "per and by must name two parameters" if fields["by"] == fields.get("per") else None


def _odd_table(said: str) -> Invalid:
    return Invalid(f"price is a table, and {said}", code="invalid_option", field="price")


def _split(parameters: Parameters, split: Any) -> Split:
    match split:
        case [str() as counted, int() as most] if not isinstance(most, bool):
            if counted not in parameters.names:
                known = ", ".join(parameters.names) or "none"
                raise wrong(
                    "split", split, f"it begins with the name of a parameter; known are {known}"
                )
            if 1 <= most <= _MOST:
                return counted, most
        case _:
            pass
    raise wrong(
        "split",
        split,
        f'it may be a parameter and a whole number from 1 to {_MOST}, like ("images", 4)',
    )
