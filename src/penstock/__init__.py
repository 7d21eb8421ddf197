"""Penstock: the durable queue for AI work, on Postgres alone."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.app import Penstock
    from penstock.client.config.declared import Plan, Queue, Retries
    from penstock.client.kind import Kind
    from penstock.client.sources import Constant, Field
    from penstock.client.tickets import Batch, BatchTicket, Ticket
    from penstock.engine.jobs.info import JobInfo
    from penstock.engine.jobs.on_finish import FinishedJob
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
    from penstock.models.handlers.exceptions import Cancel, Fail, Retry, Snooze
    from penstock.models.handlers.job import Job

__all__ = [
    "Batch",
    "BatchTicket",
    "Cancel",
    "Conflict",
    "Constant",
    "DiskFull",
    "EmbeddedFailed",
    "Fail",
    "Field",
    "FinishedJob",
    "InsufficientCredits",
    "Invalid",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobInfo",
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

# The module of each name, which is imported at the first access: every command imports this
# package, and most of them need neither the database driver nor the check of payloads.
_MODULES = {
    "penstock.client.app": ("Penstock",),
    "penstock.client.config.declared": ("Plan", "Queue", "Retries"),
    "penstock.client.kind": ("Kind",),
    "penstock.client.sources": ("Constant", "Field"),
    "penstock.client.tickets": ("Batch", "BatchTicket", "Ticket"),
    "penstock.engine.jobs.info": ("JobInfo",),
    "penstock.engine.jobs.on_finish": ("FinishedJob",),
    "penstock.models.handlers.job": ("Job",),
    "penstock.models.handlers.exceptions": ("Cancel", "Fail", "Retry", "Snooze"),
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
