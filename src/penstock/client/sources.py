"""Sources of a job's dedupe key, topic, account and price, and how large requests are split.

A field, a constant, a number or a table is declared to SQL, which then determines the value for
every caller. A function is the app's own code: Python calls it at each submit, and plain SQL cannot
submit such a kind.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from penstock.base.suggestions import did_you_mean
from penstock.engine.encoding.encode import CREDITS_MAX, encode
from penstock.engine.jobs.jobs import refuse_odd_price
from penstock.engine.options.forms import TEXT_MAX, Text, wrong
from penstock.errors import Invalid
from penstock.models.handlers.parameters import Parameters

Function = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Constant:
    """One value for all jobs of a kind: `@app.job(account=Constant("house"))`."""

    value: str


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter by name: `price=Field("cost", trusted=True)`."""

    name: str
    trusted: bool = False
    """Only the app's own backend submits, so the value of the field may be the price."""


Source = str | Constant | Callable[[dict[str, Any]], str | int | None]
"""The name of a parameter; a constant; or a function of the payload."""
Price = int | Field | Mapping[str, int | str | bool] | Callable[[dict[str, Any]], int]
"""Credits; a table of them; a function of the payload; or a trusted parameter that holds them."""
Split = tuple[str, int]
"""A parameter that is a number or a list, and how much of it one job takes at most."""

_TABLE = '{"per": "images", "by": "quality", "standard": 1, "high": 3}'
_MOST = 1_000_000

OPTIONS = ("dedupe", "topic", "account")
# The field of a job that each option determines.
_FIELDS = {"dedupe": "dedupe_key", "topic": "topic", "account": "account", "price": "price"}


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of one kind."""

    declared: dict[str, Any]
    """In the form of `declare_kind`."""
    computed: Mapping[str, Function]
    filled: Mapping[str, Any]
    """Default values of the fields that are sources: SQL reads the payload only."""

    def complete(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Return the payload with the default values of the fields that are sources."""
        return {**self.filled, **payload} if self.filled else payload

    def compute(self, payload: dict[str, Any], *, index: int = 0) -> dict[str, str | int]:
        """Call the functions with one payload; return their values by field of the job."""
        values: dict[str, str | int] = {}
        for field, function in self.computed.items():
            value = function(payload)
            is_number = isinstance(value, int) and not isinstance(value, bool)
            if field == "price" and is_number:
                refuse_odd_price(value, index)
                values[field] = value
            elif field != "price" and (is_number or isinstance(value, str)):
                values[field] = str(value) if is_number else value
            elif field == "price" or value is not None:
                whole = f"a whole number from 0 to {CREDITS_MAX}"
                raise Invalid(
                    f"the function for {field} must return "
                    f"{whole if field == 'price' else 'a text, a number or None'}, not "
                    f"{type(value).__name__}",
                    code="invalid_job",
                    field=field,
                    index=index,
                )
        return values


def read_sources(
    parameters: Parameters,
    *,
    price: Price | None = None,
    split: Split | None = None,
    **given: Source | None,
) -> Sources:
    """Read `@app.job(dedupe=…, topic=…, account=…, price=…, split=…)` for a handler."""
    declared: dict[str, Any] = {}
    computed: dict[str, Function] = {}
    for option, source in given.items():
        if _is_plain_function(source):
            computed[_FIELDS[option]] = source
        elif source is not None:
            declared |= _declared(option, source, parameters.names)
    fields = [declared[f"{option}_field"] for option in OPTIONS if f"{option}_field" in declared]
    if _is_plain_function(price):
        computed["price"] = price
    elif price is not None:
        declared["price"], price_fields = _price(parameters, price)
        fields += price_fields
    if split is not None:
        if given.get("dedupe") is not None:
            raise wrong(
                "split", split, "it excludes dedupe: a batch of several jobs is not one live job"
            )
        declared["split_field"], declared["split_most"] = _split(parameters, split)
        fields.append(declared["split_field"])
    if computed:
        declared["computed"] = [option for option in _FIELDS if _FIELDS[option] in computed]
    return Sources(declared, computed, _defaults(parameters, fields))


def _declared(option: str, source: Any, names: tuple[str, ...]) -> dict[str, str | None]:
    match source:
        case str() if source in names:
            return {f"{option}_field": source}
        case str():
            raise _names_nothing(option, source, names)
        case Constant():
            # `or ""`: None would pass as "not given".
            return {option: Text().read(source.value or "", option)}
    raise wrong(
        option,
        source,
        'it may be the name of a parameter, Constant("…"), or a plain function of the payload',
    )


def _names_nothing(option: str, name: str, known: tuple[str, ...]) -> Invalid:
    """The error for a text that is no parameter.

    Read as a constant, a misspelt parameter would give all jobs the same value.
    """
    allowed = f"as a text it names a parameter, and known are {', '.join(known) or 'none'}."
    allowed += did_you_mean(name, known)
    if 1 <= len(name) <= TEXT_MAX:
        allowed += f" For one value in all jobs write {option}=Constant({name!r})"
        allowed += f", in TOML {option} = {{ constant = {json.dumps(name)} }}"
    return wrong(option, name, allowed)


def _defaults(parameters: Parameters, fields: list[str]) -> dict[str, Any]:
    values = {field: parameters.defaults.get(field) for field in fields}
    for field, value in values.items():
        encode(value, field)  # fails now rather than at each submit
    return {field: value for field, value in values.items() if value is not None}


def _is_plain_function(source: Any) -> TypeGuard[Function]:
    return callable(source) and not inspect.iscoroutinefunction(source)


def _price(parameters: Parameters, price: Any) -> tuple[int | dict[str, Any], list[str]]:
    """Return the price in the form of `declare_kind`, and the payload's fields it is read from."""
    match price:
        case bool():
            pass
        case int() if 0 <= price <= CREDITS_MAX:
            return price, []
        case str():
            raise _untrusted(parameters, price)
        case Field():
            return _from_field(parameters, price.name, trusted=price.trusted)
        case Mapping() if "field" in price and not {"per", "by"} & price.keys():
            # The form of a field in `penstock.toml`.
            trusted = price.get("trusted", False)
            if not isinstance(trusted, bool) or price.keys() - {"field", "trusted"}:
                form = 'a field is written as {"field": "cost", "trusted": true}'
                raise wrong("price", dict(price), form)
            return _from_field(parameters, price["field"], trusted=trusted)
        case Mapping():
            return dict(price), _table(parameters, price)
        case _:
            pass
    raise wrong(
        "price",
        price,
        f"it may be a whole number from 0 to {CREDITS_MAX}, a table like {_TABLE}, a plain "
        'function of the payload, or Field("…", trusted=True)',
    )


def _from_field(
    parameters: Parameters, name: Any, *, trusted: bool
) -> tuple[dict[str, Any], list[str]]:
    if not trusted or name not in parameters.names:
        raise _untrusted(parameters, name)
    return {"field": name, "trusted": True}, [name]


def _known(parameters: Parameters) -> str:
    return ", ".join(parameters.names) or "none"


def _untrusted(parameters: Parameters, name: Any) -> Invalid:
    """The error for a price in the payload: the submitter writes it and could make a job free."""
    if name not in parameters.names:
        return wrong("price", name, f"it names a parameter, and known are {_known(parameters)}")
    return Invalid(
        f"price is taken from the parameter {name}, so the submitter of a job could set it to 0",
        code="invalid_option",
        field="price",
        hint="Give a number, a table or a function of the payload. If only your own backend submits"
        f' this kind, declare it: price=Field("{name}", trusted=True), in TOML price = {{ field = '
        f'"{name}", trusted = true }}; keys of accounts are then refused.',
    )


def _table(parameters: Parameters, table: Mapping[Any, Any]) -> list[str]:
    """Return the fields that a table reads; refuse mistakes in it, naming the key."""
    fields = {key: table[key] for key in ("per", "by") if key in table}
    for key, named in fields.items():
        if named not in parameters.names:
            raise _odd_table(f"{key} must name a parameter, and known are {_known(parameters)}")
    prices = {key: value for key, value in table.items() if key not in fields}
    if mistake := _misshapen(fields, prices):
        raise _odd_table(mistake)
    for key, value in prices.items():
        if not isinstance(key, str) or not 1 <= len(key) <= TEXT_MAX or "\x00" in key:
            raise _odd_table(f"a value of by must be a text of 1 to {TEXT_MAX} characters")
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= CREDITS_MAX:
            raise _odd_table(f"{key} must be a whole number from 0 to {CREDITS_MAX}")
    return list(fields.values())


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


def _odd_table(mistake: str) -> Invalid:
    return Invalid(f"price is a table, and {mistake}", code="invalid_option", field="price")


def _split(parameters: Parameters, split: Any) -> Split:
    match split:
        case [str() as counted, int() as most] if not isinstance(most, bool):
            if counted not in parameters.names:
                known = _known(parameters)
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
