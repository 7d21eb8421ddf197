"""The hosts of an address: the one that takes writes is found, whichever it is today.

An address may name a primary and its standbys: `postgresql://user@a,b/database`. The driver asks
them one after the other, and a host that is gone without a word keeps it from the next for as long
as a connection may take. Here the next one is asked a moment later, beside it.
"""

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from penstock.errors import Unavailable

# How long a host is asked alone.
HEAD_START_SECONDS = 0.25
DEFAULT_PORT = 5432


class Host(NamedTuple):
    name: str
    port: int

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{name}:{self.port}"


Opened = tuple[asyncpg.Connection, int]
"""A connection, and the timeline of its server; 0 where it does not tell."""


def hosts(dsn: str) -> list[Host]:
    """Those of an address that names several; none where there is nothing to choose."""
    try:
        parts = urlsplit(dsn)
        query = parse_qs(parts.query)
        user, at, named = parts.netloc.partition("@")
        named = (named if at else user) or query.get("host", [os.environ.get("PGHOST", "")])[-1]
        told = query.get("port", [""])[-1] or os.environ.get("PGPORT") or str(DEFAULT_PORT)
        ports = [int(port) for port in told.split(",")]
        # With a later @, what looks like hosts may be a piece of a password, as place() tells.
        later = parts.path + parts.query + parts.fragment if parts.netloc else ""
        if "," not in named or "@" in named + later:
            return []
        found = [_host(one) for one in named.split(",")]
    except ValueError:
        return []  # the driver says what is wrong with it
    if len(ports) not in (1, len(found)):
        return []
    usual = ports * len(found) if len(ports) == 1 else ports
    return [Host(name, port or usual[n]) for n, (name, port) in enumerate(found)]


def _host(text: str) -> tuple[str, int | None]:
    if text.startswith("/"):
        return unquote(text), None
    if text.startswith("["):
        name, _, port = text[1:].partition("]")
        return name, int(port[1:]) if port else None
    name, _, port = text.partition(":")
    return unquote(name), int(port) if port else None


async def first_of(
    wanted: Sequence[Host], connect: Callable[[Host], Awaitable[Opened]], *, all_of_them: bool
) -> asyncpg.Connection:
    """A connection to the first that takes one; of several, to the one before the others.

    `all_of_them`: ask all, and of those that answer soon take the newest timeline. An old primary
    that has come back takes connections, too.
    """
    race = _Race(wanted, connect)
    chosen: asyncpg.Connection | None = None
    try:
        while race.is_open and (all_of_them or not race.found):
            race.ask(len(wanted) if all_of_them else 1)
            if not await race.hear() and race.found:
                break
        if race.found:
            _, _, chosen = min(race.found, key=lambda one: one[:2])
            return chosen
    finally:
        race.end(chosen)
    raise _verdict([race.errors[host] for host in wanted], wanted)


class _Race:
    def __init__(
        self, wanted: Sequence[Host], connect: Callable[[Host], Awaitable[Opened]]
    ) -> None:
        self._wanted = wanted
        self._connect = connect
        self._left = list(wanted)
        self._asked: dict[asyncio.Future[Opened], Host] = {}
        self.errors: dict[Host, Exception] = {}
        self.found: list[tuple[int, int, asyncpg.Connection]] = []
        """With what they are preferred by: the newest timeline, the place in the address."""

    @property
    def is_open(self) -> bool:
        return bool(self._left or self._asked)

    def ask(self, many: int) -> None:
        """So many more."""
        begun, self._left = self._left[:many], self._left[many:]
        for host in begun:
            self._asked[asyncio.ensure_future(self._connect(host))] = host

    async def hear(self) -> bool:
        """Wait for answers: not for long, where others could be asked or one is there already."""
        patience = HEAD_START_SECONDS if self._left or self.found else None
        done, _ = await asyncio.wait(
            self._asked, timeout=patience, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            host = self._asked.pop(task)
            try:
                conn, timeline = task.result()
            except Exception as error:  # noqa: BLE001  # told when nobody else takes us
                self.errors[host] = error
            else:
                self.found.append((-timeline, self._wanted.index(host), conn))
        return bool(done)

    def end(self, chosen: asyncpg.Connection | None) -> None:
        for task in self._asked:
            task.add_done_callback(_forget)
            task.cancel()
        for _, _, conn in self.found:
            if conn is not chosen:
                conn.terminate()


def _forget(task: "asyncio.Future[Opened]") -> None:
    """It may have come through while it was told not to."""
    if not task.cancelled() and task.exception() is None:
        task.result()[0].terminate()


def _verdict(errors: Sequence[Exception], wanted: Sequence[Host]) -> Exception:
    """What is refused for good, by a server or the driver; else that none of them takes writes."""
    for error in errors:
        if isinstance(error, asyncpg.PostgresError | ValueError) and not isinstance(
            error, asyncpg.CannotConnectNowError
        ):
            return error
    if all(isinstance(error, OSError) for error in errors) and len(set(map(_said, errors))) == 1:
        return errors[0]
    told = [
        str(error).removesuffix(".")
        if isinstance(error, Unavailable)
        else f"{host}: {_said(error)}"
        for host, error in zip(wanted, errors, strict=True)
    ]
    found = Unavailable(f"None of the servers takes writes: {'; '.join(told)}.")
    found.hint = (
        "Start the primary, or promote a standby; programs that wait find it by themselves."
    )
    return found


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "does not answer"
    return reason(error) if isinstance(error, OSError) else str(error)


def reason(error: OSError) -> str:
    """In the system's words: "Connection refused", not "Connect call failed ('::1', 5432)"."""
    # Of several addresses that failed, asyncio makes one text, and the numbers are only in there.
    number = error.errno or next(iter(re.findall(r"\[Errno (\d+)\]", str(error))), None)
    if isinstance(error, socket.gaierror) or number is None:
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(int(number))
