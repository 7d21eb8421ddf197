"""Find the host that accepts writes among the hosts of an address.

An address may name a primary and its standbys: `postgresql://user@a,b/database`. The driver tries
them one after the other, so a host that does not answer delays the next one by the whole timeout of
a connection. Here the next host is tried a moment later, in parallel.

Postgres begins a new timeline with each promotion. A standby that was promoted without all of its
primary's commits continues an older state; this is logged. A server on an older timeline than the
newest known one is a primary that failed and came back: writes to it would be lost.
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

# How long to wait for one host before the next one is tried in parallel.
HEAD_START_SECONDS = 0.25
DEFAULT_PORT = 5432

# The newest timeline by system identifier, which only a cluster and its standbys share.
_seen: dict[int, int] = {}


class Host(NamedTuple):
    name: str
    port: int

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{name}:{self.port}"


Opened = tuple[asyncpg.Connection, int]
"""A connection, and the timeline of its server; 0 if the server does not report it."""


def hosts(dsn: str) -> list[Host]:
    """Return the hosts of an address with several hosts; an empty list for a single host."""
    try:
        parts = urlsplit(dsn)
        query = parse_qs(parts.query)
        user, at, named = parts.netloc.partition("@")
        named = (named if at else user) or query.get("host", [os.environ.get("PGHOST", "")])[-1]
        written = query.get("port", [""])[-1] or os.environ.get("PGPORT") or str(DEFAULT_PORT)
        ports = [int(port) for port in written.split(",")]
        # If there is a later @, the hosts may be a part of a password: see `display_address`.
        later = parts.path + parts.query + parts.fragment if parts.netloc else ""
        if "," not in named or "@" in named + later:
            return []
        names = [_host(text) for text in named.split(",")]
    except ValueError:
        return []  # the driver reports what is wrong with the address
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
    """Connect to the first host that accepts; prefer the order of the address.

    `ask_all`: try all hosts at once, and choose the newest timeline among those that answer soon,
    because an old primary that came back accepts connections, too.
    """
    left = list(candidates)
    tasks: dict[asyncio.Future[Opened], Host] = {}
    errors: dict[Host, Exception] = {}
    # Each with its sort key: the newest timeline, then the position in the address.
    opened: list[tuple[int, int, asyncpg.Connection]] = []
    chosen: asyncpg.Connection | None = None
    try:
        while (left or tasks) and (ask_all or not opened):
            many = len(left) if ask_all else 1
            tasks |= {asyncio.ensure_future(connect(host)): host for host in left[:many]}
            del left[:many]
            # A short wait if other hosts are left or one connection is open.
            patience = HEAD_START_SECONDS if left or opened else None
            done, _ = await asyncio.wait(
                tasks, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                host = tasks.pop(task)
                try:
                    conn, timeline = task.result()
                except Exception as error:  # noqa: BLE001  # raised below if no host accepts
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
    """Return a permanent refusal by a server or the driver, else that no server accepts writes."""
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
        f"None of the servers accepts writes: {'; '.join(reasons)}.",
        hint="Start the primary, or promote a standby; waiting programs then reconnect to it.",
    )


def _described(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "does not answer"
    return reason(error) if isinstance(error, OSError) else str(error)


def reason(error: OSError) -> str:
    """Return the system's message: "Connection refused", not "Connect call failed ('::1', 1)"."""
    # If several addresses failed, asyncio joins the messages; the error number is only in the text.
    number = error.errno or next(iter(re.findall(r"\[Errno (\d+)\]", str(error))), None)
    if isinstance(error, socket.gaierror) or number is None:
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(int(number))


class Role(NamedTuple):
    is_standby: bool
    system: int
    timeline: int
    """0: the server does not report it."""


async def role_of(conn: asyncpg.Connection) -> Role:
    """Return the role of the server. Some managed servers forbid these functions."""
    try:
        [row] = await conn.fetch(_ROLE)
    except asyncpg.PostgresError:
        hot_standby = getattr(conn.get_settings(), "in_hot_standby", "off")
        return Role(hot_standby == "on", 0, 0)
    return Role(row["is_standby"], row["system"], int((row["wal"] or "0")[:8], 16))


def admit(role: Role, where: str, *, compares: bool = False) -> None:
    """Refuse a standby, and a server on an older timeline than the newest known one.

    `compares`: several servers are being compared, so a newer timeline is not logged.
    """
    if role.is_standby:
        raise Unavailable(
            f"{where} is a standby, which accepts no writes.",
            hint="Use the address of the primary, or of all servers:"
            " postgresql://user@a,b/database?target_session_attrs=read-write.",
        )
    if not role.timeline:
        return
    newest = _seen.setdefault(role.system, role.timeline)
    if role.timeline < newest:
        raise Unavailable(
            f"{where} is on timeline {role.timeline}, but the database was already on {newest}: it"
            " is an old primary that came back.",
            hint="Stop it, and start it again as a standby (pg_rewind). If you restored an older"
            " state on purpose, restart the programs that were connected to the newer one.",
        )
    _seen[role.system] = role.timeline
    if role.timeline > newest and not compares:
        _log.warning(
            "a standby was promoted: the database is on timeline %d, it was on %d. Commits that"
            " only the old primary had are missing",
            role.timeline,
            newest,
        )


# The timeline is the first third of the file name, which is correct right after a promotion; the
# value of the last checkpoint is not.
_ROLE = """
select pg_catalog.pg_is_in_recovery() as is_standby, s.system_identifier as system,
  case when not pg_catalog.pg_is_in_recovery()
    then pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) end as wal
from pg_catalog.pg_control_system() s
"""
