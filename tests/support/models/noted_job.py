"""A job that records what its handler reports, and one call of a handler with it."""

import asyncio
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from penstock.failures.classify import classify
from penstock.failures.verdict import Verdict
from penstock.models.handlers.job import DONE, Done, Job
from penstock.models.handlers.protocols import Handler, Handover
from penstock.net.endpoint import Endpoint, read_endpoint
from penstock.net.transport import Transport


class NotedJob(Job):
    """A job without the worker's part."""

    def __init__(self, kind: str = "feedback", attempt: int = 1) -> None:
        self._id = uuid4()
        self._kind = kind
        self._attempt = attempt
        self.stages: list[tuple[str, str | None]] = []
        self.emitted: list[Any] = []
        self.used: dict[str, float] = {}
        self.units: int | None = None
        self.handed = False
        self.full = asyncio.Event()
        self.full.set()

    @property
    def id(self) -> UUID:
        return self._id

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def attempt(self) -> int:
        return self._attempt

    @property
    def key(self) -> str:
        return str(self._id)

    def stage(self, name: str, label: str | None = None) -> Any:
        self.stages.append((name, label))
        return nullcontext()

    def progress(self, done: float, total: float | None = None, partial: Any = None) -> Done:
        raise NotImplementedError

    async def emit(self, data: Any) -> None:
        self.emitted.append(data)
        await self.full.wait()

    def usage(self, **counts: float) -> Done:
        self.used = self.used | {n: self.used.get(n, 0) + count for n, count in counts.items()}
        return DONE

    def charge(self, *, units: int) -> Done:
        self.units = units
        return DONE

    async def hand_over(self) -> Handover:
        self.handed = True
        url = f"http://127.0.0.1:8484/v1/callbacks/{self.id}"
        return Handover("1.a-token", url, datetime(2026, 11, 16, tzinfo=UTC))

    @property
    def heard(self) -> str:
        return "".join(self.emitted)


def at(url: str, *, local_only: bool = False) -> Endpoint:
    return read_endpoint(url, from_variable=True, local_only=local_only)


async def fails(handler: Handler, job: NotedJob, payload: dict[str, Any]) -> tuple[Verdict, float]:
    """The verdict on its failure, and how long that took."""
    began = time.monotonic()
    try:
        found = await handler(job, payload)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is classified
        return classify(error), time.monotonic() - began
    raise AssertionError(f"it did not fail: {found}")


async def busy() -> int:
    return (await Transport.here()).busy
