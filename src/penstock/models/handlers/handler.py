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
    """How much memory a handler in its own process may take."""
    on_finish: OnFinish | None = None
    origin: tuple[str, str] | None = None
    """Module and qualified name, by which a process of its own finds the handler again."""
    hands_over: bool = False
    """Whether it ends when a function outside has taken the job, which calls back later."""
    warm: Callable[[], None] | None = None
    """What takes long and is done once, before the first job."""
    extensions: Sequence[Extension] = ()
    """What the app knows of its errors: see `Penstock.classify`."""
    outside: Callable[[], Outside] | None = None
    """What to sign with, and where callbacks come in; Misconfigured without a secret."""
    signer: Signer | None = None
    """Of callbacks: the secret that the function outside shares with this kind of job."""


def modes_by_queue(
    handlers: Mapping[str, Handler], queues: Sequence[str] | None
) -> dict[str, tuple[Mode, ...]]:
    """Which sorts of handlers the jobs of each queue have."""
    modes_of: dict[str, set[Mode]] = {}
    for handler in handlers.values():
        modes_of.setdefault(handler.queue, set()).add(handler.mode)
    if not modes_of:
        raise Misconfigured("The app declares no job: there is nothing for a worker to do.")
    unknown = sorted(set(queues or ()) - set(modes_of))
    if unknown:
        raise Misconfigured(
            f"No job of the app is in queue {', '.join(unknown)}; "
            f"its queues are {', '.join(sorted(modes_of))}."
        )
    return {
        queue: tuple(sorted(modes))
        for queue, modes in modes_of.items()
        if not queues or queue in queues
    }
