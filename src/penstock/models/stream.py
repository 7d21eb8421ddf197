"""Streamed answers: their lines and events, and the time limits between tokens."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal

# A token takes a few hundred bytes; a longer line or event is not a stream of tokens.
LINE_BYTES = 4 * 1_048_576


class Lines:
    """Splits received bytes into lines, the format in which Ollama streams."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._begun: list[bytes] = []
        self._length = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that are now complete, without line ends."""
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
        """Return the last line, which may lack a line end."""
        return [b"".join(self._begun)]

    def _refuse_endless(self, what: str, length: int) -> None:
        if length > LINE_BYTES:
            raise ProviderError(
                f"{self._address} sent {what} of more than {LINE_BYTES} bytes",
                Signal(status=200, exception="bad_json", received=True, address=self._address),
            )


class Events(Lines):
    """Splits received bytes into server-sent events, the format in which OpenAI streams."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._data: list[bytes] = []
        self._data_length = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that are now complete."""
        events = []
        for line in super().feed(chunk):
            self._add(line)
            if line in _EMPTY:
                events += self._take()
        return events

    def end(self) -> list[bytes]:
        """Return the last event, which some servers do not end with an empty line."""
        self._add(b"".join(self._begun))
        return self._take()

    def _add(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data_length += len(line)
            self._refuse_endless("an event", self._data_length)
            self._data.append(line[5:].removesuffix(b"\r").removeprefix(b" "))

    def _take(self) -> list[bytes]:
        """Return the data of the current event, if there is any."""
        data, self._data, self._data_length = self._data, [], 0
        return [b"\n".join(data)] if data else []


_EMPTY = (b"", b"\r")


class Pace:
    """The deadline of the next token. Other bytes, like a comment each second, do not extend it."""

    __slots__ = ("_limit", "_loop", "_stall", "begun")

    def __init__(self, limit: asyncio.Timeout, stall: float) -> None:
        self._limit = limit
        self._stall = stall
        self._loop = asyncio.get_running_loop()
        self.begun = False

    def token(self) -> None:
        """Record a token, and set the deadline of the next one."""
        self.begun = True
        self._limit.reschedule(self._loop.time() + self._stall)

    def over(self) -> None:
        """Remove the deadline: the answer is complete."""
        self._limit.reschedule(None)

    async def waiting(self, work: Awaitable[object]) -> None:
        """Await work that is not the model's, without counting its time against the model."""
        self._limit.reschedule(None)
        await work
        self._limit.reschedule(self._loop.time() + self._stall)


@asynccontextmanager
async def paced(first: float | None, stall: float, address: str) -> AsyncIterator[Pace]:
    """Stop the enclosed block if the first token, or the next one, does not come in time.

    `first` None: only the job's timeout limits the first token. If the worker then stops the job,
    the cancellation has as its cause an error that the model sent nothing: that is the model's
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
