"""The job object from both sides: what a model's handler needs of it, and what it needs itself.

`penstock.models.handlers.job.Job` is a `Job`; the worker's attempt behind it is a `JobContext`.
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
    """What a function outside needs to call back, and until when."""

    token: str
    callback_url: str
    expires_at: datetime


Handler = Callable[["Job", dict[str, Any]], Coroutine[Any, Any, Any]]
"""What `build` makes of a configuration: from a job and its payload, the result."""


class ProgressReports(Protocol):
    """Takes what handlers report; it is written a moment later. `context`: who reports."""

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
        """Let the attempt go on outside, under a token of its own."""

    def in_loop(self, call: Callable[..., None], *args: Any) -> None:
        """Call this in the worker's loop, from whatever thread."""

    def wait_for(self, call: Any) -> Any:
        """Run a coroutine in the worker's loop from a handler's thread, and wait for it."""
