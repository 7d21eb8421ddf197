"""A handler: the function behind a kind of job, and how a worker runs it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import asyncpg

from penstock.engine.jobs.on_finish import FinishedJob
from penstock.errors import Misconfigured
from penstock.failures.classify import Extension
from penstock.models.handlers.parameters import Parameters
from penstock.security.callback_token import Outside
from penstock.security.signature import Signer

Mode = Literal["async", "thread", "process"]
OnFinish = Callable[[FinishedJob, asyncpg.Connection], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Handler:
    kind: str
    queue: str
    function: Callable[..., Any]
    parameters: Parameters
    mode: Mode
    memory_bytes: int | None = None
    """The memory limit of a handler in its own process."""
    on_finish: OnFinish | None = None
    origin: tuple[str, str] | None = None
    """Module and qualified name, by which a handler process finds the handler."""
    hands_over: bool = False
    """Whether the handler passes the job to an outside function, which calls back later."""
    warm: Callable[[], None] | None = None
    """Slow preparations that run once, before the first job."""
    extensions: Sequence[Extension] = ()
    """The app's own classification of errors: see `Penstock.classify`."""
    outside: Callable[[], Outside] | None = None
    """Returns the signing secret and the address for callbacks; Misconfigured without a secret."""
    signer: Signer | None = None
    """The signer of callbacks: the secret that the outside function shares with this kind."""


def modes_by_queue(
    handlers: Mapping[str, Handler], queues: Sequence[str] | None
) -> dict[str, tuple[Mode, ...]]:
    """Return the modes of the handlers of each queue."""
    modes_of: dict[str, set[Mode]] = {}
    for handler in handlers.values():
        modes_of.setdefault(handler.queue, set()).add(handler.mode)
    if not modes_of:
        raise Misconfigured("The app declares no job kind: a worker would have nothing to do.")
    unknown = sorted(set(queues or ()) - set(modes_of))
    if unknown:
        raise Misconfigured(
            f"The app declares no job kind for queue {', '.join(unknown)}; "
            f"its queues are {', '.join(sorted(modes_of))}."
        )
    return {
        queue: tuple(sorted(modes))
        for queue, modes in modes_of.items()
        if not queues or queue in queues
    }
