"""The job as a model's handler sees it: what it needs of `penstock.worker.handlers.job.Job`."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Handover:
    """What a function outside needs to call back, and until when."""

    token: str
    callback_url: str
    expires_at: datetime


class Job(Protocol):
    @property
    def id(self) -> UUID: ...
    @property
    def kind(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def key(self) -> str: ...

    def stage(self, name: str, label: str | None = None) -> AbstractAsyncContextManager[Any]: ...
    def progress(
        self, done: float, total: float | None = None, partial: Any = None
    ) -> Awaitable[None]: ...
    def emit(self, data: Any) -> Awaitable[None]: ...
    def usage(self, **counts: float) -> Awaitable[None]: ...
    def charge(self, *, units: int) -> Awaitable[None]: ...
    def hand_over(self) -> Awaitable[Handover]: ...


Handler = Callable[[Job, dict[str, Any]], Coroutine[Any, Any, Any]]
"""What `build` makes of a configuration: from a job and its payload, the result."""
