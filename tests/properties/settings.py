"""The small world the machine walks: bounds so tight that rare paths are everyday ones."""

from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=60)
CANCEL_GRACE = timedelta(seconds=10)
TIMEOUT_GRACE = timedelta(seconds=5)

# One of each: no limit; a width; a width and a pace; everyone in a lane.
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {"attempts": 2, "recovery": 1, "backoff": "constant", "delay_seconds": 30}
    | {"stuck_after_seconds": 30},
    "pair": {"attempts": 2, "recovery": 2, "backoff": "linear", "delay_seconds": 20}
    | {"order": "strict", "concurrency": 2, "stuck_after_seconds": 62},
    "paced": {"attempts": 2, "recovery": 3, "backoff": "exponential", "delay_seconds": 5}
    | {"concurrency": 1, "rate": "6/min", "burst": 2, "stuck_after_seconds": 20},
    "fair": {"attempts": 3, "recovery": 1, "backoff": "constant", "delay_seconds": 0}
    | {"order": "fair", "stuck_after_seconds": 300},
}
for _options in QUEUES.values():
    _options |= {"timeout_seconds": 60, "backoff_max_seconds": 40}

# Kinds and their queues; `once` may fail only once. Some workers have handlers for FEW only.
KINDS = {name: name for name in QUEUES} | {"once": "plain", "also": "fair"}
FEW = frozenset(QUEUES)
KIND_OPTIONS: dict[str, dict[str, Any]] = {"once": {"attempts": 1}}

PLANS: dict[str, dict[str, Any]] = {
    "free": {"default": True},
    "one": {"concurrency": 1},
    "two": {"concurrency": 2, "weight": 3},
}
ACCOUNTS = {"ann": "one", "bob": "two", "cy": "free"}
# What each has to begin with: a few jobs' worth.
CREDITS = 100


def backoff(queue: str, failures: int) -> timedelta:
    """The wait before start number `failures` + 1."""
    options = QUEUES[queue]
    factor = {"constant": 1, "linear": failures, "exponential": 2 ** (failures - 1)}
    wait: int = options["delay_seconds"] * factor[options["backoff"]]
    return timedelta(seconds=min(wait, options["backoff_max_seconds"]))


def recovery_wait(crashes: int) -> timedelta:
    """The wait before recovery number `crashes`."""
    return timedelta(seconds={1: 0, 2: 10}.get(crashes, 60))
