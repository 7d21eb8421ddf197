"""The outcome of a submission: published, or rejected with a reason and a fault."""

from dataclasses import dataclass
from typing import Any, Literal

Ending = Literal["PUBLISHED", "REJECTED"]

# The only reason that is the author's. All others are ours: a submission is never said to be at
# fault because a machine of ours died.
FINDINGS = "findings"


@dataclass(frozen=True, slots=True)
class End:
    state: Ending
    reason: str | None
    findings: list[dict[str, Any]]
    start: int | None
    """The attempt that scanned it completely."""


def end_of(status: str, result: Any, error: dict[str, Any] | None) -> End:
    if status == "succeeded":
        found = result["findings"]
        rejected = bool(found)
        return End(
            "REJECTED" if rejected else "PUBLISHED",
            FINDINGS if rejected else None,
            found,
            result["start"],
        )
    why = error or {}
    # stuck_exhausted or attempts_exhausted, otherwise the class: cancelled, bug, …
    return End("REJECTED", why.get("reason") or why.get("class") or status, [], None)


def fault_of(reason: str | None) -> str | None:
    """Return whose fault the rejection is."""
    return None if reason is None else "author" if reason == FINDINGS else "platform"
