"""The hosts of an address: the one that takes writes is found, whichever it is today.

An address may name a primary and its standbys: `postgresql://user@a,b/database`. The driver asks
them one after the other, and a host that is gone without a word keeps it from the next for as long
as a connection may take. Here the next one is asked a moment later, beside it.

Postgres begins a new timeline with each promotion. A standby that was promoted without all of its
primary's commits continues an older state, which is logged. A server on an older timeline than was
seen before is a primary that failed and came back: writes to it would be lost.
"""

import asyncio
import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from penstock.errors import Unavailable

_log = logging.getLogger("penstock.db")

# How long a host is asked alone.
HEAD_START_SECONDS = 0.25
DEFAULT_PORT = 5432

# By system identifier, which a cluster shares with its standbys only: the newest timeline.
_seen: dict[int, int] = {}


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
        written = query.get("port", [""])[-1] or os.environ.get("PGPORT") or str(DEFAULT_PORT)
        ports = [int(port) for port in written.split(",")]
        # With a later @, what looks like hosts may be a piece of a password: see `place`.
        later = parts.path + parts.query + parts.fragment if parts.netloc else ""
        if "," not in named or "@" in named + later:
            return []
        names = [_host(text) for text in named.split(",")]
    except ValueError:
        return []  # the driver says what is wrong with it
    if len(ports) not in (1, len(names)):
        return []
    usual = ports * len(names) if len(ports) == 1 else ports
    return [Host(name, port or usual[n]) for n, (name, port) in enumerate(names)]


def _host(text: str) -> tuple[str, int | None]:
    if text.startswith("/"):
        return unquote(text), None
    if text.startswith("["):
        name, _, port = text[1:].partition("]")
        return name, int(port[1:]) if port else None
    name, _, port = text.partition(":")
    return unquote(name), int(port) if port else None


async def first_of(
    candidates: Sequence[Host], connect: Callable[[Host], Awaitable[Opened]], *, ask_all: bool
) -> asyncpg.Connection:
    """A connection to the first that takes one; of several, to the one before the others.

    `ask_all`: ask all, and of those that answer soon take the newest timeline. An old primary
    that has come back takes connections, too.
    """
    left = list(candidates)
    tasks: dict[asyncio.Future[Opened], Host] = {}
    errors: dict[Host, Exception] = {}
    # With what they are preferred by: the newest timeline, the position in the address.
    opened: list[tuple[int, int, asyncpg.Connection]] = []
    chosen: asyncpg.Connection | None = None
    try:
        while (left or tasks) and (ask_all or not opened):
            many = len(left) if ask_all else 1
            tasks |= {asyncio.ensure_future(connect(host)): host for host in left[:many]}
            del left[:many]
            # Not for long, where others could be asked or one is there already.
            patience = HEAD_START_SECONDS if left or opened else None
            done, _ = await asyncio.wait(
                tasks, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                host = tasks.pop(task)
                try:
                    conn, timeline = task.result()
                except Exception as error:  # noqa: BLE001  # raised below when no host takes us
                    errors[host] = error
                else:
                    opened.append((-timeline, candidates.index(host), conn))
            if opened and not done:
                break
        if opened:
            chosen = min(opened, key=lambda each: each[:2])[2]
            return chosen
    finally:
        for task in tasks:
            task.add_done_callback(_terminate)
            task.cancel()
        for _, _, conn in opened:
            if conn is not chosen:
                conn.terminate()
    raise _verdict([errors[host] for host in candidates], candidates)


def _terminate(task: "asyncio.Future[Opened]") -> None:
    """Close the connection of a task that succeeded before it could be cancelled."""
    if not task.cancelled() and task.exception() is None:
        task.result()[0].terminate()


def _verdict(errors: Sequence[Exception], candidates: Sequence[Host]) -> Exception:
    """What is refused for good, by a server or the driver; else that none of them takes writes."""
    for error in errors:
        if isinstance(error, asyncpg.PostgresError | ValueError) and not isinstance(
            error, asyncpg.CannotConnectNowError
        ):
            return error
    if (
        all(isinstance(error, OSError) for error in errors)
        and len(set(map(_described, errors))) == 1
    ):
        return errors[0]
    reasons = [
        str(error).removesuffix(".")
        if isinstance(error, Unavailable)
        else f"{host}: {_described(error)}"
        for host, error in zip(candidates, errors, strict=True)
    ]
    return Unavailable(
        f"None of the servers takes writes: {'; '.join(reasons)}.",
        hint="Start the primary, or promote a standby; programs that wait find it by themselves.",
    )


def _described(error: Exception) -> str:
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


class Role(NamedTuple):
    is_standby: bool
    system: int
    timeline: int
    """0: the server does not tell."""


async def role_of(conn: asyncpg.Connection) -> Role:
    """Of the server behind a connection. Some managed ones keep their functions to themselves."""
    try:
        [row] = await conn.fetch(_ROLE)
    except asyncpg.PostgresError:
        hot_standby = getattr(conn.get_settings(), "in_hot_standby", "off")
        return Role(hot_standby == "on", 0, 0)
    return Role(row["is_standby"], row["system"], int((row["wal"] or "0")[:8], 16))


def admit(role: Role, where: str, *, compares: bool = False) -> None:
    """Refuse a standby, and whoever is behind the newest timeline that was seen.

    `compares`: several servers are asked for theirs, and a newer one is no news.
    """
    if role.is_standby:
        raise Unavailable(
            f"{where} is a standby, which takes no writes.",
            hint="Give the address of the primary, or of all servers:"
            " postgresql://user@a,b/database?target_session_attrs=read-write.",
        )
    if not role.timeline:
        return
    newest = _seen.setdefault(role.system, role.timeline)
    if role.timeline < newest:
        raise Unavailable(
            f"{where} is on timeline {role.timeline} of a database that was seen on {newest}: it is"
            " an old primary that came back.",
            hint="Stop it, and let it return as a standby (pg_rewind). If an older state was"
            " restored on purpose, restart the programs that saw the newer one.",
        )
    _seen[role.system] = role.timeline
    if role.timeline > newest and not compares:
        _log.warning(
            "a standby was promoted: the database is on timeline %d, it was on %d. What only the"
            " old primary had is not in it",
            role.timeline,
            newest,
        )


# The timeline is the first third of the name: at once after a promotion, as no checkpoint tells it.
_ROLE = """
select pg_catalog.pg_is_in_recovery() as is_standby, s.system_identifier as system,
  case when not pg_catalog.pg_is_in_recovery()
    then pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) end as wal
from pg_catalog.pg_control_system() s
"""
