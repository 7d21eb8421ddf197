"""Penstock: the durable queue for AI work, on Postgres alone."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.app import (
        Batch,
        BatchTicket,
        Constant,
        Field,
        Kind,
        Penstock,
        Plan,
        Queue,
        Retries,
        Ticket,
    )
    from penstock.engine.hooks import Ended
    from penstock.errors import (
        Conflict,
        DiskFull,
        EmbeddedFailed,
        InsufficientCredits,
        Invalid,
        JobCancelled,
        JobFailed,
        MigrationFailed,
        Misconfigured,
        NotAllowed,
        NotFound,
        PenstockError,
        RateLimited,
        Refused,
        RolledBack,
        SchemaMismatch,
        TooLarge,
        Unauthorized,
        Unavailable,
        WrongApp,
    )
    from penstock.worker.context import Job
    from penstock.worker.outcomes import Cancel, Fail, Retry, Snooze

__all__ = [
    "Batch",
    "BatchTicket",
    "Cancel",
    "Conflict",
    "Constant",
    "DiskFull",
    "EmbeddedFailed",
    "Ended",
    "Fail",
    "Field",
    "InsufficientCredits",
    "Invalid",
    "Job",
    "JobCancelled",
    "JobFailed",
    "Kind",
    "MigrationFailed",
    "Misconfigured",
    "NotAllowed",
    "NotFound",
    "Penstock",
    "PenstockError",
    "Plan",
    "Queue",
    "RateLimited",
    "Refused",
    "Retries",
    "Retry",
    "RolledBack",
    "SchemaMismatch",
    "Snooze",
    "Ticket",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "WrongApp",
]

# Where each name is. Loaded when it is first asked for: the command line imports this package at
# each start, and most commands need no driver and no type checker.
_MODULES = {
    "penstock.app": (
        *("Batch", "BatchTicket", "Ticket"),
        *("Constant", "Field", "Kind", "Penstock", "Plan", "Queue", "Retries"),
    ),
    "penstock.engine.hooks": ("Ended",),
    "penstock.worker.context": ("Job",),
    "penstock.worker.outcomes": ("Cancel", "Fail", "Retry", "Snooze"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_HOMES.get(name, "penstock.errors"))
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return __all__
