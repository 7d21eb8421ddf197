"""An answer that comes piece by piece: its lines and events, and how long a piece may take."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal

# A token is a few hundred bytes; a line or an event that does not end is no stream of tokens.
LINE_BYTES = 4 * 1_048_576


class Lines:
    """Cuts bytes as they come into lines."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._begun: list[bytes] = []
        self._length = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        whole, end, rest = chunk.rpartition(b"\n")
        if not end:
            self._keep(chunk)
            return []
        whole = b"".join((*self._begun, whole))
        self._begun = []
        self._length = 0
        if rest:
            self._keep(rest)
        return whole.split(b"\n")

    def rest(self) -> bytes:
        """What came after the last end of a line."""
        return b"".join(self._begun)

    def _keep(self, part: bytes) -> None:
        self._length += len(part)
        if self._length > LINE_BYTES:
            raise _endless("a line", self._address)
        self._begun.append(part)


class JsonLines:
    """A value a line, as Ollama streams."""

    def __init__(self, address: str) -> None:
        self._lines = Lines(address)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The values that are complete now."""
        return [line for line in self._lines.feed(chunk) if line.strip()]

    def end(self) -> list[bytes]:
        """The last, which may lack its end of line."""
        rest = self._lines.rest()
        return [rest] if rest.strip() else []


class Events:
    """The data of server-sent events, as OpenAI streams."""

    def __init__(self, address: str) -> None:
        self._lines = Lines(address)
        self._address = address
        self._data: list[bytes] = []
        self._length = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that are complete now."""
        found = []
        for line in self._lines.feed(chunk):
            self._take(line)
            if line in _EMPTY and self._data:
                found.append(self._whole())
        return found

    def end(self) -> list[bytes]:
        """Not every server ends its last event with an empty line."""
        self._take(self._lines.rest())
        return [self._whole()] if self._data else []

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        self._length += len(line)
        if self._length > LINE_BYTES:
            raise _endless("an event", self._address)
        self._data.append(line[5:].removesuffix(b"\r").removeprefix(b" "))

    def _whole(self) -> bytes:
        data = b"\n".join(self._data)
        self._data = []
        self._length = 0
        return data


_EMPTY = (b"", b"\r")


def _endless(what: str, address: str) -> ProviderError:
    return ProviderError(
        f"{address} sent {what} of more than {LINE_BYTES} bytes",
        Signal(status=200, exception="bad_json", received=True, address=address),
    )


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

    async def resting(self, work: Awaitable[object]) -> None:
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
    pace: Pace | None = None
    begun_at = asyncio.get_running_loop().time()
    limit = asyncio.timeout(first)
    try:
        async with limit:
            pace = Pace(limit, stall)
            yield pace
    except TimeoutError:
        if not limit.expired():
            raise
        if pace is None or not pace.begun:
            raise _silent(first or 0.0, address) from None
        raise ProviderError(
            f"the model at {address} sent no token for {stall:g} s",
            Signal(exception="stall", received=True, address=address),
        ) from None
    except asyncio.CancelledError as stopped:
        if pace is None or not pace.begun:
            waited = asyncio.get_running_loop().time() - begun_at
            raise stopped from _silent(round(waited, 0 if waited > 10 else 1), address)  # noqa: PLR2004
        raise


def _silent(seconds: float, address: str) -> ProviderError:
    return ProviderError(
        f"the model at {address} sent no first token in {seconds:g} s",
        Signal(exception="first_token", received=False, address=address),
    )
