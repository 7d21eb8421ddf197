"""A client of live streams: events as they arrive, each awaited with a deadline."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: Any
    id: str | None


class Listener:
    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.had: list[Event] = []
        """All events that arrived."""
        self.comments = 0
        self.retry: int | None = None
        self.closed = asyncio.Event()
        self._came: asyncio.Queue[Event | None] = asyncio.Queue()

    async def next(self, seconds: float = SECONDS) -> Event:
        """The next event, whatever it is."""
        async with asyncio.timeout(seconds):
            event = await self._came.get()
        assert event is not None, f"the stream closed after {self.had}"
        return event

    async def until(
        self, wanted: Callable[[Event], bool], what: str, seconds: float = SECONDS
    ) -> Event:
        """The next event that matches; earlier ones are skipped."""
        try:
            async with asyncio.timeout(seconds):
                while not wanted(event := await self.next(seconds)):
                    pass
                return event
        except TimeoutError:
            raise AssertionError(f"not within {seconds:g} s: {what}; events: {self.had}") from None

    async def status(self, status: str, job: Any = None, seconds: float = SECONDS) -> Event:
        """The event with this status of the job (any job if none is given)."""
        return await self.until(
            lambda event: (
                event.name == "job"
                and event.data["status"] == status
                and (job is None or event.data["id"] == str(job))
            ),
            f"a job is {status}",
            seconds,
        )

    async def all_are(self, status: str, jobs: Iterable[Any], seconds: float = SECONDS) -> None:
        """Wait until each of the jobs has this status, in any order."""
        left = {str(job) for job in jobs}

        def is_last(event: Event) -> bool:
            if event.name == "job" and event.data["status"] == status:
                left.discard(event.data["id"])
            return not left

        await self.until(is_last, f"{len(left)} jobs are {status}", seconds)

    async def over(self, seconds: float = SECONDS) -> list[Event]:
        """Wait until the stream closes; return all events."""
        try:
            async with asyncio.timeout(seconds):
                await self.closed.wait()
        except TimeoutError:
            raise AssertionError(f"still open after {seconds:g} s: {self.had}") from None
        return self.had

    async def read(self) -> None:
        fields: dict[str, str] = {}
        async for line in self.response.aiter_lines():
            if line.startswith(":"):
                self.comments += 1
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                self._take(fields)
                fields = {}
        self.closed.set()
        self._came.put_nowait(None)

    def _take(self, fields: dict[str, str]) -> None:
        if "retry" in fields:
            self.retry = int(fields["retry"])
        if "event" in fields:
            event = Event(fields["event"], json.loads(fields["data"]), fields.get("id"))
            self.had.append(event)
            self._came.put_nowait(event)


@asynccontextmanager
async def listening(
    client: httpx.AsyncClient, path: str, *, last: str | None = None, token: str | None = None
) -> AsyncIterator[Listener]:
    headers = {} if last is None else {"Last-Event-ID": last}
    params = {} if token is None else {"token": token}
    async with client.stream("GET", path, headers=headers, params=params) as response:
        if response.status_code != httpx.codes.OK:
            await response.aread()
            raise AssertionError(f"{response.status_code}: {response.text}")
        listener = Listener(response)
        reading = asyncio.get_running_loop().create_task(listener.read())
        try:
            yield listener
        finally:
            reading.cancel()
            # Not by awaiting it: that would swallow a cancellation of this task.
            await asyncio.wait([reading])
            if not reading.cancelled():
                reading.exception()
