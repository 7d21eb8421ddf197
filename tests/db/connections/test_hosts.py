"""Addresses of several hosts: which host is tried when, and which connection is chosen."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from penstock.db.connections.connect import open_connection
from penstock.db.connections.display_address import display_address
from penstock.db.connections.hosts import (
    HEAD_START_SECONDS,
    Host,
    Opened,
    Role,
    admit,
    first_of,
    hosts,
)
from penstock.errors import Misconfigured, Unavailable

A, B = Host("a", 1), Host("b", 2)
SECRET = "hunter2"  # noqa: S105  # nobody's


class Line:
    """A stand-in for a connection."""

    def __init__(self) -> None:
        self.closed = False

    def terminate(self) -> None:
        self.closed = True


def answering(**lines: tuple[float, int] | Exception) -> Callable[[Host], Awaitable[Opened]]:
    """The behaviour of each host: seconds until it answers, and its timeline; or an error."""

    async def connect(host: Host) -> Any:
        behaviour = lines[host.name]
        if isinstance(behaviour, Exception):
            raise behaviour
        seconds, timeline = behaviour
        await asyncio.sleep(seconds)
        made[host] = Line()
        return made[host], timeline

    made: dict[Host, Line] = {}
    connect.made = made  # type: ignore[attr-defined]
    return connect


@pytest.mark.parametrize(
    ("dsn", "found"),
    [
        ("postgresql://u@a:1,b:2/d", [A, B]),
        (f"postgresql://u:{SECRET}@a:1,b:2/d?target_session_attrs=read-write", [A, B]),
        ("postgresql:///d?host=a,b&port=1,2", [A, B]),
        ("postgresql:///d?host=a,b&port=7", [Host("a", 7), Host("b", 7)]),
        ("postgresql://a,[::1]:2/d", [Host("a", 5432), Host("::1", 2)]),
        ("postgresql:///d?host=/run/a,/run/b", [Host("/run/a", 5432), Host("/run/b", 5432)]),
        (f"postgresql://u:1,{SECRET}/x@a:1/d", []),  # a password with a comma and a slash
        ("postgresql://u@a:1/d", []),
        ("postgresql:///d?host=/run/a", []),
        ("postgresql:///d?host=a,b&port=1,2,3", []),
        ("postgresql://u@a:x,b/d", []),
        ("host=a,b dbname=d", []),
    ],
)
def test_hosts_are_the_same_as_the_drivers(
    dsn: str, found: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGPORT", raising=False)
    assert hosts(dsn) == found


def test_missing_parts_of_an_address_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGHOST", "a,b")
    monkeypatch.setenv("PGPORT", "1,2")
    assert hosts("postgresql:///d") == [A, B]


async def test_a_host_that_is_named_twice_is_used_once() -> None:
    assert await first_of([A, A], answering(a=(0, 1)), ask_all=True)


async def test_a_wrong_option_is_not_reported_as_an_unreachable_server() -> None:
    with pytest.raises(Misconfigured, match="is not of the form"):
        await open_connection("postgresql://u@127.0.0.1:1,127.0.0.2:1/d?sslmode=odd")


async def test_a_silent_host_does_not_delay_the_next() -> None:
    connect = answering(a=(60, 1), b=(0, 1))
    begun = time.monotonic()
    taken: Any = await first_of([A, B], connect, ask_all=False)
    assert taken is connect.made[B]  # type: ignore[attr-defined]
    assert time.monotonic() - begun < HEAD_START_SECONDS + 5


async def test_no_other_host_is_tried_if_the_first_answers_at_once() -> None:
    connect = answering(a=(0, 1), b=(0, 1))
    await first_of([A, B], connect, ask_all=False)
    assert set(connect.made) == {A}  # type: ignore[attr-defined]


async def test_of_two_primaries_the_newer_timeline_is_chosen_and_the_other_closed() -> None:
    connect = answering(a=(0, 1), b=(0.05, 2))
    taken: Any = await first_of([A, B], connect, ask_all=True)
    made = connect.made  # type: ignore[attr-defined]
    assert taken is made[B]
    assert (made[A].closed, made[B].closed) == (True, False)


async def test_a_wrong_password_is_not_reported_as_an_unreachable_server() -> None:
    wrong = asyncpg.InvalidPasswordError("no")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await first_of([A, B], answering(a=OSError(111, ""), b=wrong), ask_all=False)


async def test_if_no_server_accepts_writes_the_error_has_all_reasons() -> None:
    standby = Unavailable("b:2 is a standby, which accepts no writes.")
    refused = ConnectionRefusedError(111, "refused")
    with pytest.raises(Unavailable) as raised:
        await first_of([A, B], answering(a=refused, b=standby), ask_all=True)
    assert str(raised.value) == (
        "None of the servers accepts writes: a:1: Connection refused; b:2 is a standby, which"
        " accepts no writes."
    )
    assert raised.value.hint


async def test_errors_for_several_hosts_contain_no_password() -> None:
    dsn = f"postgresql://u:{SECRET}@127.0.0.1:1,127.0.0.2:1/d"
    assert display_address(dsn) == "127.0.0.1:1,127.0.0.2:1/d"
    with pytest.raises(Unavailable, match="Connection refused") as raised:
        await open_connection(dsn)
    assert SECRET not in str(raised.value)


def test_an_old_timeline_is_refused_and_a_new_one_logged(caplog: pytest.LogCaptureFixture) -> None:
    system = uuid4().int
    with caplog.at_level(logging.WARNING, "penstock.db"):
        admit(Role(is_standby=False, system=system, timeline=1), "a")
        assert not caplog.records
        admit(Role(is_standby=False, system=system, timeline=2), "b")
    assert "on timeline 2, it was on 1" in caplog.text
    with pytest.raises(Unavailable, match="a is on timeline 1, but the database was already on 2"):
        admit(Role(is_standby=False, system=system, timeline=1), "a")
    # Another database, and a server that reports no timeline, are not compared.
    admit(Role(is_standby=False, system=uuid4().int, timeline=1), "c")
    admit(Role(is_standby=False, system=0, timeline=0), "d")
    with pytest.raises(Unavailable, match="a is a standby"):
        admit(Role(is_standby=True, system=system, timeline=0), "a")
