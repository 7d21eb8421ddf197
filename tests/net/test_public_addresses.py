"""Addresses that callers give never lead into the operator's own network."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from penstock.engine.webhooks import Delivery
from penstock.errors import Invalid
from penstock.net import public_addresses, transport
from penstock.net.public_addresses import is_public, read_public, refuse_private
from penstock.net.transport import close_transport
from penstock.security.callback_token import Outside
from penstock.security.roots import Roots
from penstock.worker.maintenance import webhooks

PUBLIC = "93.184.215.14"

HOSTILE = [
    # Not https, or not an address
    "http://example.org/hook",
    "ftp://example.org/",
    "file:///etc/passwd",
    "gopher://example.org:70/_x",
    "javascript:alert(1)",
    "//example.org/x",
    "example.org/hook",
    "https://",
    "https:///path",
    "",
    "https://example.org:0/",
    "https://example.org:99999/",
    "https://example.org:port/",
    # User and password, and parts that some parsers take for the host
    "https://user@example.org/",
    "https://user:pw@example.org/",
    "https://example.org@127.0.0.1/",
    "https://127.0.0.1\\@example.org/",
    "https://example.org\\.evil.org/",
    "https://example.org#@127.0.0.1/".replace("#", "%23"),
    # This machine
    "https://127.0.0.1/",
    "https://127.0.0.1:8484/v1/admin/status",
    "https://127.255.255.254/",
    "https://localhost/",
    "https://LOCALHOST/",
    "https://localhost./",
    "https://api.localhost/",
    "https://0.0.0.0/",
    "https://[::1]/",
    "https://[::]/",
    "https://[0:0:0:0:0:0:0:1]/",
    # The same in unusual forms
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0177.0.0.1/",
    "https://017700000001/",
    "https://127.1/",
    "https://127.0.1/",
    "https://127.0.0.01/",
    "https://127.0.0.1./",
    "https://%31%32%37.0.0.1/",
    "https://①②⑦.⓪.⓪.①/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[2001:0:7f00:1::]/",
    # Other networks that are not public
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://[::ffff:169.254.169.254]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fd00:ec2::254]/",
    "https://[fc00::1]/",
    "https://[fec0::1]/",
    "https://168.63.129.16/machine",
    "https://100.100.100.200/latest/",
    "https://192.0.2.1/",
    "https://198.18.0.1/",
    "https://203.0.113.9/",
    "https://224.0.0.1/",
    "https://255.255.255.255/",
    "https://[ff02::1]/",
    "https://[2001:db8::1]/",
    # Names that only the operator's network knows
    "https://intranet/",
    "https://metadata/computeMetadata/v1/",
    # Characters that break a line or a parser
    "https://example.org/a b",
    "https://example.org/\r\nX: y",
    "https://example.org/\x00",
    "https://exa mple.org/",
    "https://ex\tample.org/",
    "https://-example-.org/",
    "https://example..org/",
    "https://" + "a" * 64 + ".org/",
    "https://example.org/" + "x" * 2_000,
]


@pytest.mark.parametrize("url", HOSTILE)
def test_a_hostile_address_is_refused(url: str) -> None:
    """C5: before any name is resolved, with a message that names the field."""
    with pytest.raises(Invalid) as caught:
        read_public(url, allow_private=False)
    assert (caught.value.code, caught.value.field) == ("address_not_allowed", "webhook_url")
    assert caught.value.status == 422
    if len(url) > 10:
        assert url not in str(caught.value)  # it may contain a secret


@pytest.mark.parametrize("value", [None, 7, ["https://example.org"], b"https://example.org"])
def test_a_value_that_is_not_a_string_is_refused(value: Any) -> None:
    with pytest.raises(Invalid, match="webhook_url must be an address"):
        read_public(value, allow_private=False)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org",
        "https://example.org:8443/hooks?job=1&x=%20#top",
        "https://hooks.my-app.example.org./a/b",
        "https://xn--bcher-kva.example/",
        f"https://{PUBLIC}/x",
        "https://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]/x",
        "https://under_score.example.org/",
        "https://1password.example.org/",
    ],
)
def test_an_ordinary_address_is_accepted(url: str) -> None:
    endpoint = read_public(url, allow_private=False)
    assert endpoint.public_only
    assert "#" not in endpoint.url


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/x", "https://intranet/x", "http://10.0.0.1/", "http://[::1]:1/"]
)
def test_an_operator_may_allow_private_addresses(url: str) -> None:
    """PENSTOCK_ALLOW_PRIVATE."""
    assert not read_public(url, allow_private=True).public_only
    for odd in ("ftp://10.0.0.1/", "http://user@10.0.0.1/", "http://0x7f.1/"):
        with pytest.raises(Invalid):
            read_public(odd, allow_private=True)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", PUBLIC, "2606:4700:4700::1111", "::ffff:8.8.8.8", "1.1.1.1"]
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "100.64.0.1", "169.254.1.1", "0.1.2.3", "::1", "fe80::1%eth0"),
        *("fd12::1", "2002:a00:1::", "64:ff9b::a00:1", "::ffff:10.0.0.1", "", "name", "1.2.3"),
        *("192.88.99.1", "240.0.0.1", "ff0e::1", "3fff::1", "2001::1", "5f00::1"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


Lookup = Callable[..., None]


@pytest.fixture
def lookup(monkeypatch: pytest.MonkeyPatch) -> Lookup:
    """Sets the answers of the resolver: one after the other, and the last one for ever."""

    def stand_for(*answers: Sequence[str] | Exception) -> None:
        left = list(answers)

        def look_up(_: Any, port: Any, *__: Any, **___: Any) -> list[Any]:
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Exception):
                raise answer
            return [
                (
                    socket.AF_INET6 if ":" in one else socket.AF_INET,
                    socket.SOCK_STREAM,
                    6,
                    "",
                    (one, port or 0, 0, 0) if ":" in one else (one, port or 0),
                )
                for one in answer
            ]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)

    return stand_for


async def test_all_addresses_of_a_name_must_be_public(lookup: Lookup) -> None:
    lookup([PUBLIC, "2606:4700:4700::1111"])
    await refuse_private("https://example.org/x", allow_private=False)
    for private in ("127.0.0.1", "10.0.0.1", "::1", "fe80::1%eth0", "169.254.169.254"):
        lookup([PUBLIC, private])
        with pytest.raises(Invalid, match="not public"):
            await refuse_private("https://example.org/x", allow_private=False)
    await refuse_private("http://example.org/x", allow_private=True)


async def test_a_name_that_cannot_be_resolved_is_refused(
    lookup: Lookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails closed: without an answer of the resolver there is no call."""
    answers: tuple[Any, ...] = (socket.gaierror(-3, "again"), OSError("away"), [])
    for answer in answers:
        lookup(answer)
        with pytest.raises(Invalid, match="cannot be found"):
            await refuse_private("https://example.org/x", allow_private=False)
    monkeypatch.setattr(public_addresses, "LOOKUP_SECONDS", 0.05)

    async def never(*_: Any, **__: Any) -> list[Any]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(public_addresses, "resolve_name", never)
    with pytest.raises(Invalid, match="cannot be found"):
        await refuse_private("https://example.org/x", allow_private=False)


async def test_names_that_are_slow_to_resolve_delay_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C5: many such names would block the threads that uploads and providers need."""
    found = threading.Event()

    def look_up(*_: Any, **__: Any) -> list[Any]:
        assert found.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(public_addresses, "LOOKUP_SECONDS", 20)
    slow = [
        asyncio.create_task(refuse_private(f"https://h{n}.example.org/", allow_private=False))
        for n in range(100)
    ]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            assert await asyncio.to_thread(lambda: "done") == "done"
    finally:
        found.set()
        await asyncio.gather(*slow, return_exceptions=True)


# --- at the connect -------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await close_transport()


def delivery(url: str, *, trusted: bool = False) -> Delivery:
    job = json.dumps({"id": str(uuid4()), "status": "succeeded"})
    return Delivery(
        uuid4(), 1, uuid4(), "job.succeeded", url, "", trusted, "u1", datetime.now(UTC), job
    )


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port of this machine, and the data that it received."""
    came: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.read(10))
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], came
    finally:
        server.close()


def outside(*, allow_private: bool = False) -> Outside:
    return Outside(Roots(("root-of-these-tests",)), allow_private=allow_private)


async def test_a_name_that_resolves_to_another_address_at_the_call_is_not_called(
    lookup: Lookup,
) -> None:
    """DNS rebinding: public at submit, this machine at connect."""
    async with listening() as (port, came):
        url = f"https://example.org:{port}/x"
        lookup([PUBLIC], ["127.0.0.1"])
        await refuse_private(url, allow_private=False)
        answer = await webhooks.send(delivery(url), outside())
        lookup([PUBLIC, "127.0.0.1"])
        other = await webhooks.send(delivery(url.replace("org", "net")), outside())
    assert (answer.taken, other.taken, came) == (False, False, [])
    assert "not public" in (answer.error or "")
    assert "not public" in (other.error or "")


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1:{port}/x",
        "https://2130706433:{port}/x",
        "https://0x7f.1:{port}/x",
        "https://[::ffff:127.0.0.1]:{port}/x",
        "http://127.0.0.1:{port}/x",
        "https://localhost:{port}/x",
    ],
)
async def test_an_address_submitted_by_plain_sql_is_not_called_either(url: str) -> None:
    async with listening() as (port, came):
        answer = await webhooks.send(delivery(url.format(port=port)), outside())
    assert (answer.taken, answer.over, came) == (False, True, [])


@pytest.mark.parametrize(
    "url",
    [
        "https://xn--bcher-kva.example/hook",
        "https://[2606:4700:4700:0:0:0:0:1111]/hook",
        "https://[::ffff:93.184.215.14]/hook",
    ],
)
def test_an_accepted_address_is_called_in_any_spelling(url: str) -> None:
    """The HTTP library accepts names in their own alphabet, and short numeric addresses."""
    transport._refuse_literal(read_public(url, allow_private=False))


async def test_a_redirect_is_not_followed() -> None:
    """R-F22: 302 to a link-local address."""
    asked: list[str] = []

    async def move(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=302, headers={"Location": "http://169.254.169.254/latest/"})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", move)
    server = TestServer(app)
    await server.start_server()
    try:
        url = f"http://127.0.0.1:{server.port}/x"
        answer = await webhooks.send(delivery(url, trusted=True), outside())
    finally:
        await server.close()
    assert (answer.taken, answer.status, asked) == (False, 302, ["/x"])
    assert "redirects are not followed" in (answer.error or "")


def test_the_http_library_parses_addresses_as_expected() -> None:
    """It takes digits without dots for an address, without a resolver: so the guard checks them."""
    from aiohttp.helpers import is_ip_address

    assert is_ip_address("2130706433")


def test_the_table_is_long_enough() -> None:
    assert len(set(HOSTILE)) >= 60
