"""A queue with local_only: its jobs reach private networks and nothing else (F13)."""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Misconfigured, Penstock
from penstock.client.config.toml import load
from penstock.errors import Invalid
from penstock.failures.classify import classify
from penstock.models.http import Http, build
from penstock.net import private_addresses
from penstock.net.endpoint import Endpoint, read_endpoint
from penstock.net.private_addresses import is_private, refuse_outside
from penstock.net.provider_errors import ProviderError
from penstock.net.transport import Transport
from penstock.security.secret import Secret
from support.models.answering import answer, answering
from support.models.noted_job import NotedJob, at

Names = dict[str, list[str]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """A DNS for the test, which replaces the system's resolver."""
    known: Names = {}
    system = socket.getaddrinfo

    def look_up(host: Any, port: Any, *args: Any, **more: Any) -> Any:
        if host not in known:
            if host in ("127.0.0.1", "::1", "localhost", None):
                return system(host, port, *args, **more)
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        kind, stream = socket.AF_INET, socket.SOCK_STREAM
        return [(kind, stream, 6, "", (address, port or 0)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("10.0.0.1", True),
        ("172.16.0.1", True),
        ("172.31.255.255", True),
        ("172.32.0.1", False),
        ("192.168.178.20", True),
        ("169.254.1.1", True),
        ("::1", True),
        ("fd00::1", True),
        ("fe80::1%eth0", True),
        ("::ffff:10.0.0.1", True),
        ("::ffff:8.8.8.8", False),
        ("8.8.8.8", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),  # noqa: S104
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("2001:4860:4860::8888", False),
        ("64:ff9b::a00:1", False),
        ("::", False),
        ("nonsense", False),
    ],
)
def test_which_addresses_are_private(address: str, private: bool) -> None:
    """F13."""
    assert is_private(address) is private


@pytest.mark.parametrize(
    ("host", "stands_for"),
    [
        ("127.0.0.1", []),
        ("::1", []),
        ("192.168.1.5", []),
        ("ollama", ["172.18.0.4"]),
        ("ollama.local", ["192.168.1.5"]),
        ("gpu.school.internal", ["10.1.1.1"]),
        ("gpu.lan.", []),
        ("not-up-yet", []),
    ],
)
def test_private_hosts_are_accepted(names: Names, host: str, stands_for: list[str]) -> None:
    if stands_for:
        names[host] = stands_for
    refuse_outside(host)


@pytest.mark.parametrize(
    ("host", "stands_for", "message"),
    [
        ("8.8.8.8", [], "leads to 8.8.8.8, which is outside of private networks"),
        ("api.openai.com", [], "leads to api.openai.com, a public name"),
        ("private.example.org", ["10.0.0.1"], "a public name"),
        ("ollama.local.example.org", ["10.0.0.1"], "a public name"),
        ("proxy", ["104.18.0.1"], "leads to proxy, which resolves to an address outside"),
        ("two.lan", ["10.0.0.1", "104.18.0.1"], "resolves to an address outside"),
        ("134744072", ["8.8.8.8"], "resolves to an address outside"),
    ],
)
def test_other_hosts_are_refused_at_start(
    names: Names, host: str, stands_for: list[str], message: str
) -> None:
    """F13."""
    if stands_for:
        names[host] = stands_for
    with pytest.raises(Invalid, match=message) as caught:
        read_endpoint(f"http://{host}/", from_variable=False, local_only=True)
    assert "local_only may call an address of a private network (127.0.0.0/8" in str(caught.value)
    read_endpoint(f"http://{host}/", from_variable=False)


def test_a_name_that_is_slow_to_resolve_is_checked_at_the_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(private_addresses, "_LOOKUP_SECONDS", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, **_b: time.sleep(0.5))
    began = time.monotonic()
    refuse_outside("slow")
    assert time.monotonic() - began < 0.4


def test_a_proxy_is_refused_because_it_hides_where_a_call_goes() -> None:
    with pytest.raises(Invalid, match="proxy cannot be used on a queue with local_only"):
        read_endpoint(
            "http://127.0.0.1/", from_variable=False, local_only=True, proxy=Secret("http://p:1")
        )


async def test_a_name_that_resolves_to_another_address_is_refused_at_the_connect(
    names: Names,
) -> None:
    """F13: DNS may change after the process has started; then nothing is sent."""
    names["ollama"] = ["127.0.0.1"]
    async with answering(answer(200, {}, '{"ok": true}')) as port:
        endpoint = at(f"http://ollama:{port}/f", local_only=True)
        run = build(Http(endpoint=endpoint))
        assert await run(NotedJob(), {}) == {"ok": True}
        await (await Transport.here()).close()  # and its cached names
        for moved in (["104.18.0.1"], ["127.0.0.1", "104.18.0.1"]):
            names["ollama"] = moved
            with pytest.raises(ProviderError, match="nothing was sent") as caught:
                await run(NotedJob(), {})
            assert classify(caught.value).cls == "config"
            assert classify(caught.value).address == f"ollama:{port}"


async def test_a_numeric_address_is_checked_before_the_connect_too() -> None:
    endpoint = Endpoint("http://8.8.8.8:9/", "8.8.8.8:9", "8.8.8.8", local_only=True)
    async with asyncio.timeout(1):
        with pytest.raises(ProviderError, match="nothing was sent") as caught:
            await build(Http(endpoint=endpoint))(NotedJob(), {})
    assert classify(caught.value).cls == "config"


async def test_an_open_connection_of_another_queue_is_not_reused(names: Names) -> None:
    """It was opened without a check of its address."""
    names["ollama"] = ["127.0.0.1"]
    body = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1"
    async with answering(body, "hang") as port:
        url = f"http://ollama:{port}/f"
        await build(Http(endpoint=at(url)))(NotedJob(), {})
        assert (await Transport.here()).idle == 1
        names["ollama"] = ["104.18.0.1"]
        moved = Endpoint(url, f"ollama:{port}", "ollama", local_only=True)
        with pytest.raises(ProviderError, match="nothing was sent"):
            await build(Http(endpoint=moved))(NotedJob(), {})


Load = Callable[[str], Penstock]


@pytest.fixture
def load_text(tmp_path: Path) -> Load:
    def loaded(text: str) -> Penstock:
        (tmp_path / "penstock.toml").write_text(text)
        return load(tmp_path / "penstock.toml")

    return loaded


JOB = """
[queues.q]
local_only = {flag}
[jobs.f]
queue = "q"
handler = "{handler}"
url = "{url}"
fields = {{}}
"""
MODEL = 'model = "m"\nprompt = "p"\n'


@pytest.mark.parametrize("handler", ["ollama", "openai", "http"])
def test_every_handler_of_such_a_queue_is_checked(load_text: Load, handler: str) -> None:
    """F13."""
    more = "" if handler == "http" else MODEL
    with pytest.raises(Misconfigured, match=r"\[jobs.f\], url: url leads to 8.8.8.8, which"):
        load_text(JOB.format(flag="true", handler=handler, url="http://8.8.8.8:1") + more)
    load_text(JOB.format(flag="false", handler=handler, url="http://8.8.8.8:1") + more)
    app = load_text(JOB.format(flag="true", handler=handler, url="http://10.0.0.1:1") + more)
    assert app.queues["q"].local_only


@pytest.mark.parametrize("model", ["gpt-oss:120b-cloud", "glm-5:cloud"])
def test_a_model_of_ollamas_cloud_is_refused_at_start(load_text: Load, model: str) -> None:
    """F13: the server is local, but would pass the prompt on."""
    text = JOB.format(flag="true", handler="ollama", url="http://127.0.0.1:1")
    with pytest.raises(Misconfigured, match=r"model: .* runs in Ollama's cloud"):
        load_text(f'{text}prompt = "p"\nmodel = "{model}"')
    open_queue = text.replace("local_only = true", "local_only = false")
    load_text(f'{open_queue}prompt = "p"\nmodel = "{model}"')


def test_local_only_is_declared_only_if_set() -> None:
    app = Penstock(name="tests")
    assert app.queue("a", local_only=True).declared == {"local_only": True}
    assert app.queue("b").declared == {}
    with pytest.raises(Invalid, match="local_only is 'yes'; it may be true or false"):
        app.queue("c", local_only="yes")  # type: ignore[arg-type]
