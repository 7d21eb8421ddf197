"""Protocols around the job object: the handlers that use it, and the attempt that it needs.

Handlers receive a `penstock.models.handlers.job.Job`; the worker's attempt behind it is a
`JobContext`.
"""

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from penstock.engine.jobs.attempts import Claimed
from penstock.engine.uploads import Uploads

if TYPE_CHECKING:
    from penstock.models.handlers.job import Job


@dataclass(frozen=True, slots=True)
class Handover:
    """What an outside function needs for its callback, and the deadline of the callback."""

    token: str
    callback_url: str
    expires_at: datetime


Handler = Callable[["Job", dict[str, Any]], Coroutine[Any, Any, Any]]
"""The function that `build` makes of a configuration: it turns a job and its payload into a result.
"""


class ProgressReports(Protocol):
    """Collects the reports of handlers and writes them a moment later. `context`: the reporter."""

    def stage(self, context: Any, /, name: str, label: str | None) -> None: ...
    def progress(self, context: Any, /, text: str) -> None: ...
    def units(self, context: Any, /, units: int) -> None: ...
    def chunk(self, context: Any, /, text: str | None, encoded: str) -> None: ...
    def is_full(self, context: Any, /) -> bool: ...
    async def room(self, context: Any, /) -> None: ...
    async def read_steps(self, context: Any, /) -> None: ...
    async def keep_step(self, context: Any, /, name: str, text: str) -> None: ...


class JobContext(Protocol):
    """The attempt that a job object belongs to."""

    returned: bool
    cancelled: bool
    token: str | None
    steps: dict[str, Any]
    usage: dict[str, Any] | None
    units: int | None

    @property
    def claimed(self) -> Claimed: ...
    @property
    def progress(self) -> ProgressReports: ...
    @property
    def uploads(self) -> Uploads: ...

    def run_step(self, function: Callable[[], Any]) -> Future[Any]:
        """Run a step's plain function in a thread."""

    def hand_over(self) -> Coroutine[Any, Any, Handover]:
        """Dispatch the attempt: it continues outside, under its own token."""

    def in_loop(self, call: Callable[..., None], *args: Any) -> None:
        """Call a function in the worker's loop, from any thread."""

    def wait_for(self, call: Any) -> Any:
        """Run a coroutine in the worker's loop from a handler's thread, and wait for it."""
