"""The objects that routes use: the server builds them once for all requests."""

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

# The time limit of calls that process all rows at once. A call that is cut off is rolled back, so
# repeating it with a shorter limit would never finish it.
PATIENT_SECONDS = 60.0


class Kinds(Protocol):
    """What the app in this process knows of kinds and SQL does not."""

    def check(
        self, kind: str, payload: Mapping[str, Any], *, index: int = 0
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the payload parsed by the handler's types, and what the app computes from it.

        None: this app does not declare the kind, so only the database checks.
        """

    def queue_of(self, kind: str) -> str | None:
        """Return the queue of the kind's jobs; None: this app does not declare the kind."""

    def names(self) -> list[str]:
        """Return the kinds that this process has handlers for."""


@dataclass(frozen=True, slots=True)
class Worked:
    """The result of a call that drives a queue."""

    processed: int
    released: int = 0
    busy: bool = False
    """Another call drives the queue, so this one did nothing."""


class Runner(Protocol):
    """Runs jobs in this process for a bounded time."""

    async def work(self, queue: str, seconds: float, most: int | None) -> Worked: ...


class Drives(Protocol):
    """Starts the calls that run the jobs of driven queues."""

    def submitted(self, kinds: Collection[str]) -> None:
        """Note that jobs of these kinds may be due now or have free slots. Call after commit."""

    def due(self, queues: Collection[str | None]) -> None:
        """The same for these queues."""

    @property
    def knows_address(self) -> bool:
        """Whether an address to call is configured; an address in a request is never used."""

    async def call(self, queue: str, *, body: dict[str, object] | None = None) -> bool:
        """Begin a call; return whether it was accepted."""


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
    """Submits and reads that share statements."""
    patient: Engine = field(init=False)
    """For calls whose time grows with the size of a batch, an account or a plan."""
    callback_signers: Mapping[str, Signer] = field(default_factory=dict)
    """By kind: the signer with the secret that the kind shares with its outside function."""
    on_leave: list[Callable[[], None]] = field(default_factory=list)
    """Called when the server is asked to stop, before it waits for open requests."""
    may_notify_in_commit: Callable[[str], bool] = lambda _: False
    """Whether the next commit may send the notification for a queue's workers itself."""
    wake: Callable[[str], None] = lambda _: None
    """Notify a queue's workers. Call after commit; returns at once."""
    notify_app: Callable[[], None] = lambda: None
    """Run due on_finish callbacks. Call after a commit that finished jobs; returns at once."""

    def __post_init__(self) -> None:
        self.batched = BatchedJobs(self.engine.texts)
        self.patient = self.engine.within(PATIENT_SECONDS)
