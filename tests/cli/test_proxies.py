"""The client's address in `serve`: forwarded headers count from a named proxy only."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from penstock.base.settings import Settings
from penstock.cli.serving.serving import with_mapped
from penstock.errors import Misconfigured
from penstock.http.auth.caller import FAILURES
from support.http.serving import serving

Ask = Callable[[str | None], Awaitable[int]]


@pytest.fixture
async def ask(migrated: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Ask]:
    """Send a wrong key to a server whose proxies are the parameter, with this X-Forwarded-For."""
    with serving(migrated, tmp_path, {"PENSTOCK_PROXIES": request.param}) as served:
        await served.start()
        async with served.client("wrong") as client:

            async def ask(forwarded: str | None) -> int:
                headers = {} if forwarded is None else {"x-forwarded-for": forwarded}
                return (await client.get("/v1/jobs", headers=headers)).status_code

            yield ask


@pytest.mark.one_version
@pytest.mark.parametrize("ask", ["", "192.0.2.1"], indirect=True)
async def test_a_client_cannot_pretend_to_be_another(ask: Ask) -> None:
    """C3: not even a client on the server's own machine."""
    for n in range(FAILURES):
        assert await ask(f"198.51.100.{n}") == 401
    assert await ask("198.51.100.77") == 429
    assert await ask(None) == 429


@pytest.mark.one_version
@pytest.mark.parametrize("ask", ["127.0.0.1, 10.0.0.0/24"], indirect=True)
async def test_headers_of_a_named_proxy_count_and_those_of_clients_do_not(ask: Ask) -> None:
    """C3: a proxy appends the address that it has seen."""
    for n in range(FAILURES):
        assert await ask(f"198.51.100.{n}, 203.0.113.5") == 401
    assert await ask("198.51.100.77, 203.0.113.5") == 429
    assert await ask("198.51.100.77, 203.0.113.5, 10.0.0.9") == 429, "through two proxies"
    assert await ask("203.0.113.5, 203.0.113.6") == 401, "another client"


def test_proxies_are_addresses_and_networks(tmp_path: Path) -> None:
    environ = {"PENSTOCK_PROXIES": "127.0.0.1, ::1 ,10.0.8.5/24"}
    found = Settings.from_environment(environ, tmp_path).proxies
    assert found == ("127.0.0.1/32", "::1/128", "10.0.8.0/24")
    assert Settings.from_environment({}, tmp_path).proxies == ()
    assert with_mapped(("10.0.8.0/24", "::1/128")) == [
        "10.0.8.0/24",
        "::ffff:10.0.8.0/120",
        "::1/128",
    ]
    for odd in ("*", "proxy.example.org", "0.0.0.0/0", "::/0", "10.0.0.0/33"):
        with pytest.raises(Misconfigured, match=r"PENSTOCK_PROXIES names .*like 10\.0\.0\.7"):
            Settings.from_environment({"PENSTOCK_PROXIES": odd}, tmp_path)
