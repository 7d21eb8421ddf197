"""Which faults are ordered: for how many calls, how long, and which ones."""

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from penstock.base.settings import duration
from penstock.errors import Invalid
from penstock.models.simulated.faults.faults import FAULTS, Fault
from penstock.models.simulated.request import Ask

Match = Callable[[Ask], bool]
# What an order may say beside the fault's own parameters.
_TERMS = ("times", "seconds", "path", "chance", "contains")


@dataclass(slots=True, kw_only=True)
class Order:
    fault: Fault
    times: int | None = None  # None: until healed
    seconds: float | None = None
    path: str | None = None  # a part of the path; None: every call that asks for an answer
    chance: float = 1
    contains: str | None = None  # words that the prompt must hold
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
    """The faults that wait for calls; the oldest one that fits is taken."""

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
        """The fault of this call. `ask` is None for calls that ask for no answer."""
        if not self._orders:
            return None
        now = time.monotonic()
        self._orders = [o for o in self._orders if o.until is None or o.until > now]
        for order in self._orders:
            if not order.fits(path, ask) or self._random.random() >= order.chance:
                continue
            if order.times is not None:
                order.times -= 1
                if order.times == 0:
                    self._orders.remove(order)
            return order.fault
        return None

    def report(self) -> list[dict[str, Any]]:
        """Not what a prompt must hold: that may be somebody's text."""
        return [
            {
                "fault": order.fault.name,
                "times": order.times,
                "path": order.path,
                "chance": order.chance,
            }
            for order in self._orders
        ]


def order_from(fields: dict[str, Any]) -> Order:
    """An order from a JSON object: `fault`, its parameters, and when it applies."""
    named = fields.get("fault")
    if not isinstance(named, str):
        _refuse("fault", f"is missing; it may be {', '.join(FAULTS)}")
    given = {**_written(named), **fields, "fault": named.partition(":")[0].strip()}
    fault = fault_from(
        given["fault"], {k: v for k, v in given.items() if k not in (*_TERMS, "fault")}
    )
    order = Order(fault=fault)
    try:
        if (times := given.get("times")) is not None:
            order.times = int(times)
        if (chance := given.get("chance")) is not None:
            order.chance = float(chance)
    except (TypeError, ValueError):
        _refuse("times, chance", "must be numbers")
    if order.times is not None and order.times < 1:
        _refuse("times", "must be 1 or more")
    if not 0 < order.chance <= 1:
        _refuse("chance", "must be more than 0, and 1 at most")
    if (seconds := given.get("seconds")) is not None:
        order.seconds = duration(seconds, field="seconds").total_seconds()
    for name in ("path", "contains"):
        if (text := given.get(name)) is not None:
            setattr(order, name, str(text))
    return order


def order_written(text: str) -> Order:
    """An order as people write it: `status:code=503,times=2`, or a JSON object."""
    if text.lstrip().startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError:
            _refuse("fault", "begins like JSON and is none")
        return order_from(fields)
    return order_from({"fault": text})


def fault_from(name: str, parameters: dict[str, Any]) -> Fault:
    kind = FAULTS.get(name)
    if kind is None:
        _refuse("fault", f"is {name!r}; it may be {', '.join(FAULTS)}")
    known = [field.name for field in dataclasses.fields(kind)]
    if unknown := [key for key in parameters if key not in known]:
        takes = f"it takes {', '.join((*known, *_TERMS))}"
        _refuse(f"{name}.{unknown[0]}", f"is not known; {takes}")
    try:
        return TypeAdapter[Fault](kind).validate_python(parameters)
    except ValidationError as wrong:
        first = wrong.errors()[0]
        _refuse(".".join([name, *map(str, first["loc"][:1])]), f"is wrong: {first['msg']}")


def _written(text: str) -> dict[str, str]:
    _, _, rest = text.partition(":")
    found = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            _refuse("fault", f"has {pair!r}; parameters are written as NAME:key=value,key=value")
        found[key.strip()] = value.strip()
    return found


def _refuse(field: str, why: str) -> NoReturn:
    raise Invalid(f"{field} {why}", code="invalid_fault", field=field)
