"""An answer that comes piece by piece: its lines and events, and how long a piece may take."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal

# A token is a few hundred bytes; a line or an event that does not end is no stream of tokens.
LINE_BYTES = 4 * 1_048_576


class Lines:
    """Cuts bytes as they come into lines, as Ollama streams."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._begun: list[bytes] = []
        self._length = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        whole, end, rest = chunk.rpartition(b"\n")
        lines = []
        if end:
            lines = b"".join((*self._begun, whole)).split(b"\n")
            self._begun, self._length = [], 0
        if rest:
            self._length += len(rest)
            self._refuse_endless("a line", self._length)
            self._begun.append(rest)
        return lines

    def end(self) -> list[bytes]:
        """The last, which may lack its end of line."""
        return [b"".join(self._begun)]

    def _refuse_endless(self, what: str, length: int) -> None:
        if length > LINE_BYTES:
            raise ProviderError(
                f"{self._address} sent {what} of more than {LINE_BYTES} bytes",
                Signal(status=200, exception="bad_json", received=True, address=self._address),
            )


class Events(Lines):
    """The data of server-sent events, as OpenAI streams."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._data: list[bytes] = []
        self._data_length = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that are complete now."""
        events = []
        for line in super().feed(chunk):
            self._add(line)
            if line in _EMPTY:
                events += self._take()
        return events

    def end(self) -> list[bytes]:
        """Not every server ends its last event with an empty line."""
        self._add(b"".join(self._begun))
        return self._take()

    def _add(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data_length += len(line)
            self._refuse_endless("an event", self._data_length)
            self._data.append(line[5:].removesuffix(b"\r").removeprefix(b" "))

    def _take(self) -> list[bytes]:
        """The event that has come, if there is one."""
        data, self._data, self._data_length = self._data, [], 0
        return [b"\n".join(data)] if data else []


_EMPTY = (b"", b"\r")


class Pace:
    """When the next token is due. Bytes that are none, like a comment each second, do not count."""

    __slots__ = ("_limit", "_loop", "_stall", "begun")

    def __init__(self, limit: asyncio.Timeout, stall: float) -> None:
        self._limit = limit
        self._stall = stall
        self._loop = asyncio.get_running_loop()
        self.begun = False

    def token(self) -> None:
        """One has come."""
        self.begun = True
        self._limit.reschedule(self._loop.time() + self._stall)

    def over(self) -> None:
        """Nothing more is due."""
        self._limit.reschedule(None)

    async def waiting(self, work: Awaitable[object]) -> None:
        """Wait for something that is not the model's; it is not blamed for that time."""
        self._limit.reschedule(None)
        await work
        self._limit.reschedule(self._loop.time() + self._stall)


@asynccontextmanager
async def paced(first: float | None, stall: float, address: str) -> AsyncIterator[Pace]:
    """Ends what is inside when its first token, or the next, does not come in time.

    `first` None: the first token may take as long as the job may. When the worker stops the job,
    the cancellation carries as its cause that the model had sent nothing: that is the model's
    fault, and its circuit counts it.
    """
    begun_at = asyncio.get_running_loop().time()
    limit = asyncio.timeout(first)
    pace = Pace(limit, stall)
    try:
        async with limit:
            yield pace
    except TimeoutError:
        if not limit.expired():
            raise
        if not pace.begun:
            raise _silent(first or 0.0, address) from None
        raise ProviderError(
            f"the model at {address} sent no token for {stall:g} s",
            Signal(exception="stall", received=True, address=address),
        ) from None
    except asyncio.CancelledError as stopped:
        if pace.begun:
            raise
        waited = asyncio.get_running_loop().time() - begun_at
        raise stopped from _silent(round(waited, 0 if waited > 10 else 1), address)  # noqa: PLR2004


def _silent(seconds: float, address: str) -> ProviderError:
    return ProviderError(
        f"the model at {address} sent no first token in {seconds:g} s",
        Signal(exception="first_token", received=False, address=address),
    )
