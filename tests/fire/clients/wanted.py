"""The requests of callers: random kinds, payloads and accounts."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

UNLIMITED = ("u2", "u5", "u8", "u11")
ACCOUNTS = tuple(f"u{n}" for n in range(12))
FAILS = 0.03
RECENT = 200
BRIEF_SECONDS = 4.0

KINDS = {
    "quick": 30,
    "sync": 10,
    "ask": 12,
    "declared": 6,
    "one": 12,
    "paint": 16,
    "long": 5,
    "child": 3,
    "outside": 6,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One job to submit."""

    tag: str
    kind: str
    payload: dict[str, Any]
    account: str | None

    @property
    def body(self) -> dict[str, Any]:
        """The form in which the API accepts it."""
        account = {} if self.account is None else {"account": self.account}
        return {"kind": self.kind, "payload": self.payload} | account


@dataclass
class Known:
    """Jobs that callers know, the newest last: id and tag."""

    jobs: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def pick(self, chance: random.Random) -> tuple[str, str] | None:
        return chance.choice(self.jobs) if self.jobs else None


def wanted(client: str, chance: random.Random, *, brief: bool = False) -> Iterator[Wanted]:
    """Yield jobs without end, each with its own tag. `brief`: all of them are short."""
    number = 0
    while True:
        number += 1
        tag = f"{client}-{number}"
        [kind] = chance.choices(list(KINDS), list(KINDS.values()))
        payload = {"tag": tag} | _fields(kind, chance)
        if brief and kind == "long":
            payload["seconds"] = min(payload["seconds"], BRIEF_SECONDS)
        yield Wanted(tag, kind, payload, _account(kind, chance))


def _fields(kind: str, chance: random.Random) -> dict[str, Any]:
    match kind:
        case "one":
            fields: dict[str, Any] = {"seconds": round(chance.uniform(0.005, 0.08), 3)}
        case "sync" | "child":
            return {"seconds": round(chance.uniform(0.01, 0.3), 3)}
        case "paint":
            fields = {"images": chance.randint(1, 6)}
        case "long":
            # Most are short; otherwise every job would lose its worker again and again.
            return {"seconds": round(2 + 23 * chance.random() ** 3, 1)}
        case "quick":
            fields = {}
        case _:
            return {}
    return fields | ({"fails": True} if chance.random() < FAILS else {})


def _account(kind: str, chance: random.Random) -> str | None:
    match kind:
        case "paint":
            return chance.choice(ACCOUNTS)
        case "long" | "child":
            # An account that may run one job at a time would wait for hours for the jobs of others.
            return chance.choice((None, *UNLIMITED))
    return chance.choice((None, *ACCOUNTS))
