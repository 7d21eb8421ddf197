"""Plans: what an account may use, as an app declares it."""

from dataclasses import dataclass
from typing import Any

from penstock.client.config import options
from penstock.client.config.source_location import Place


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Made by `app.plan(...)`."""

    name: str
    declared: dict[str, Any]
    """Its options as `declare_plan` takes them."""
    place: Place

    def __str__(self) -> str:
        return self.name


def make_plan(  # noqa: PLR0913  # one per option of the contract
    name: str,
    place: Place,
    *,
    priority: int | None,
    concurrency: int | None,
    per_hour: int | None,
    weight: int | None,
    first_job: int | None,
    default: bool,
) -> Plan:
    """Check every option, and leave to SQL what was not said."""
    declared = options.given(
        {
            "priority": options.whole(priority, "priority", -1000, 1000),
            "concurrency": options.whole(concurrency, "concurrency", 1, 1_000_000),
            "per_hour": options.whole(per_hour, "per_hour", 1, 1_000_000_000),
            "weight": options.whole(weight, "weight", 1, 1000),
            "first_job": options.whole(first_job, "first_job", -1000, 1000),
            "default": options.flag(default, "default") or None,
        }
    )
    return Plan(options.name(name, "plan"), declared, place)
