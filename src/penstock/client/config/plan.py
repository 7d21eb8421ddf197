"""Plans: what an account may use, as an app declares it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.client.config.source_location import Place
from penstock.engine.options.forms import read_name
from penstock.engine.options.option import read
from penstock.engine.options.plan import PLAN


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Made by `app.plan(...)`."""

    name: str
    declared: dict[str, Any]
    """Its options as `declare_plan` takes them."""
    place: Place

    def __str__(self) -> str:
        return self.name


def make_plan(name: str, place: Place, given: Mapping[str, Any]) -> Plan:
    """Check every option, and leave to SQL what was not given."""
    return Plan(read_name(name, "plan"), read(PLAN, given), place)
