"""Hosts with their own addresses on this machine: network namespaces around a router.

The router drops packets silently in both directions, as a pulled cable does. Only root can make
them. All of it blocks, for milliseconds.
"""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

# RFC 2544: reserved for tests of networks.
NETWORK = "198.18.{net}"
NAME = "penstock-"
TRIES = 20
# Where the test runs: the namespace of this process.
HERE = "here"

Way = Literal["both", "there", "back"]


@dataclass(frozen=True)
class Host:
    name: str
    address: str
    namespace: str | None
    """None: the machine's own."""

    @property
    def prefix(self) -> list[str]:
        """The command that starts a program on it."""
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []


class Net:
    """Hosts that reach each other through a router."""

    def __init__(self, names: Sequence[str]) -> None:
        self._mark = f"{NAME}{os.getpid()}-{secrets.token_hex(3)}"
        self._router = f"{self._mark}-router"
        self._link = f"ps{secrets.token_hex(4)}"
        self._rules: list[list[str]] = []
        self._routes: list[tuple[Host, str]] = []
        self._hosts: dict[str, Host] = {}
        self._namespaces: list[str] = []
        try:
            self._make(names)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def cut(self, one: str, other: str, way: Way = "both") -> None:
        """Drop packets between these two; `there`: only those that `one` sends."""
        first, second = self[one].address, self[other].address
        ways = {"there": [(first, second)], "back": [(second, first)]}
        for sender, receiver in ways.get(way, [(first, second), (second, first)]):
            rule = ["from", sender, "to", receiver, "blackhole"]
            self._rules.append(rule)
            _ip("-n", self._router, "rule", "add", *rule)

    def cut_at(self, one: str, other: str) -> None:
        """Cut by a route on `one` itself: its system reports to programs that there is no way."""
        host, address = self[one], self[other].address
        self._routes.append((host, address))
        _ip(*_at(host.namespace), "route", "add", "blackhole", address)

    def cut_off(self, name: str) -> None:
        """Cut this host from all others."""
        for other in self._hosts:
            if other != name:
                self.cut(name, other)

    def heal(self) -> None:
        """Let all hosts reach each other again."""
        while self._rules:
            _ip("-n", self._router, "rule", "del", *self._rules.pop())
        while self._routes:
            host, address = self._routes.pop()
            _ip(*_at(host.namespace), "route", "del", "blackhole", address)

    def close(self) -> None:
        """Remove the hosts; the caller must have stopped their programs."""
        for namespace in self._namespaces:
            _delete(namespace)

    def _make(self, names: Sequence[str]) -> None:
        self._add(self._router)
        _ip("netns", "exec", self._router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        net = self._join_here()
        for number, name in enumerate(names, start=10):
            namespace = f"{self._mark}-{name}"
            self._add(namespace)
            address = f"{net}.{number}"
            _ip("-n", self._router, "link", "add", "name", name, "type", "veth",
                "peer", "name", "eth0", "netns", namespace)  # fmt: skip
            self._route(name, address)
            _ip("-n", namespace, "link", "set", "eth0", "up")
            _ip("-n", namespace, "addr", "add", f"{address}/32", "dev", "eth0")
            _ip("-n", namespace, "route", "add", "default", "via", f"{net}.1",
                "dev", "eth0", "onlink")  # fmt: skip
            self._hosts[name] = Host(name, address, namespace)

    def _add(self, namespace: str) -> None:
        _ip("netns", "add", namespace)
        self._namespaces.append(namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")

    def _join_here(self) -> str:
        """A link from the router to this process, in a network that no other test uses."""
        _ip("-n", self._router, "link", "add", "name", HERE, "type", "veth",
            "peer", "name", self._link, "netns", str(os.getpid()))  # fmt: skip
        _ip("link", "set", "dev", self._link, "up")
        for _ in range(TRIES):
            net = NETWORK.format(net=secrets.randbelow(256))
            _ip("addr", "replace", f"{net}.2/32", "dev", self._link)
            route = [f"{net}.0/24", "via", f"{net}.1", "dev", self._link, "onlink"]
            if _run("route", "add", *route, "src", f"{net}.2").returncode == 0:
                break
            _ip("addr", "flush", "dev", self._link)
        else:
            raise AssertionError("no network is free")
        _ip("-n", self._router, "addr", "add", f"{net}.1/32", "dev", "lo")
        self._route(HERE, f"{net}.2")
        self._hosts[HERE] = Host(HERE, f"{net}.2", None)
        return net

    def _route(self, link: str, address: str) -> None:
        _ip("-n", self._router, "link", "set", "dev", link, "up")
        _ip("-n", self._router, "route", "add", address, "dev", link)


@contextmanager
def hosts(*names: str) -> Iterator[Net]:
    """Hosts of these names; if they cannot be made, the test is skipped, and fails in CI."""
    if why := _missing():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"separate hosts need {why}")
    _sweep()
    net = Net(names)
    try:
        yield net
    finally:
        net.close()


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "root"
    if shutil.which("ip") is None:
        return "ip (Debian's package iproute2)"
    name = f"{NAME}{os.getpid()}-{secrets.token_hex(3)}-try"
    if _run("netns", "add", name).returncode:
        return "network namespaces, which this system does not allow"
    _delete(name)
    return None


def _sweep() -> None:
    """Remove what killed runs have left."""
    for line in _run("netns", "list").stdout.splitlines():
        name = line.partition(" ")[0]
        pid = name.removeprefix(NAME).partition("-")[0]
        if name.startswith(NAME) and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            _delete(name)


def _delete(namespace: str) -> None:
    """Remove it with its links; those of the router are all of them."""
    _run("netns", "del", namespace)


def _at(namespace: str | None) -> list[str]:
    return ["-n", namespace] if namespace else []


def _ip(*words: str) -> None:
    done = _run(*words)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def _run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
