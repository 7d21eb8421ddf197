"""What the routes work with: built by the server, and the same for all requests."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.base.settings import Settings
from penstock.engine.engine import Engine
from penstock.engine.queries.json_texts import BatchedJobs
from penstock.http.auth.caller import Auth
from penstock.http.live.hub import Hub
from penstock.security.roots import Roots
from penstock.security.signature import Signer

# How long a call may take that does as much as there is: broken off it is undone, however often it
# is repeated.
PATIENT_SECONDS = 60.0


class Kinds(Protocol):
    """What the app in this process knows of kinds of job that SQL does not."""

    def check(
        self, kind: str, payload: Mapping[str, Any], *, index: int = 0
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The payload as the handler's types read it, and what the app's code computes of it.

        None: the kind is not of this app, so the database alone decides.
        """

    def queue_of(self, kind: str) -> str | None:
        """Where its jobs wait; None: the kind is not of this app."""

    def names(self) -> list[str]:
        """The kinds that this process has handlers for."""


@dataclass(frozen=True, slots=True)
class Worked:
    """What a call that drives a queue has done."""

    processed: int
    released: int = 0
    busy: bool = False
    """Another call drives the queue: nothing was done."""


class Runner(Protocol):
    """Runs jobs in this process, for a bounded time."""

    async def work(self, queue: str, seconds: float, most: int | None) -> Worked: ...


class Drives(Protocol):
    """Starts the calls of queues that no worker stands by."""

    def submitted(self, kinds: Collection[str]) -> None:
        """Jobs of these kinds may be due now, or their slots are free; after commit."""

    def due(self, queues: Collection[str | None]) -> None:
        """The same of these queues."""

    @property
    def knows_address(self) -> bool:
        """Whether there is an address to call: it is configured, and never a request's."""

    async def call(self, queue: str, *, body: dict[str, object] | None = None) -> bool:
        """Begin a call; whether it was taken."""


@dataclass(slots=True, kw_only=True)
class Backend:
    engine: Engine
    settings: Settings
    roots: Roots
    kinds: Kinds
    auth: Auth
    runner: Runner
    drives: Drives
    live: Hub
    batched: BatchedJobs = field(init=False)
    """Submits and reads that share a statement."""
    patient: Engine = field(init=False)
    """For calls whose time grows with a batch, an account, a plan: no wait for others."""
    callback_signers: Mapping[str, Signer] = field(default_factory=dict)
    """By kind: the secret that it shares with its function outside."""
    on_leave: list[Callable[[], None]] = field(default_factory=list)
    """Called when the server is told to stop, before it waits for open requests."""
    may_notify_in_commit: Callable[[str], bool] = lambda _: False
    """Whether the next commit may send the notification for a queue's workers itself."""
    wake: Callable[[str], None] = lambda _: None
    """Notify a queue's workers, after a commit; returns at once."""
    notify_app: Callable[[], None] = lambda: None
    """Jobs have ended here: the app's on_finish is due; after commit, comes back at once."""

    def __post_init__(self) -> None:
        self.batched = BatchedJobs(self.engine.texts)
        self.patient = self.engine.within(PATIENT_SECONDS)
