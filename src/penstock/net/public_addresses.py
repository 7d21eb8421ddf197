"""Addresses that callers give: none may lead into the operator's own network.

Each address is checked twice, as those of `local_only` queues are (private_addresses.py): at the
submit, where its name is resolved and a mistake is reported, and again at each connect
(transport.py), since a name may resolve to another address by then.
"""

import asyncio
import ipaddress
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

from penstock.errors import Invalid
from penstock.net.endpoint import Endpoint

URL_MAX = 2_000
LOOKUP_SECONDS = 5.0
# Lookups at once, in threads of their own: a name can be slow to find on purpose, and a few such
# would keep the loop's threads, and with them uploads and the lookups of providers, for as long.
LOOKUPS = 16
_PORTS = {"http": 80, "https": 443}

# What the standard library calls global, and is not for everyone.
_CLOSED = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # shared by the customers of a provider
        "168.63.129.16/32",  # what Azure tells its machines
        "169.254.0.0/16",  # and most other clouds
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",  # to networks of the other version
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",  # holds an address of version 4
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)
# Elsewhere in version 6 are private networks, and addresses of version 4 in another form.
_OPEN_6 = ipaddress.ip_network("2000::/3")
_ODD = re.compile(r"""[^!-~]|[\\<>"{}|^`]""")
_NAME = re.compile(
    r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.?"
)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


_threads: ThreadPoolExecutor


def is_public(address: str) -> bool:
    """Whether this address, as digits, is one that anybody can reach."""
    try:
        literal = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(literal, ipaddress.IPv6Address):
        if literal.ipv4_mapped is not None:
            literal = literal.ipv4_mapped
        elif literal not in _OPEN_6 or literal.scope_id:
            return False
    if not literal.is_global or literal.is_multicast or literal.is_reserved:
        return False
    return not any(literal in network for network in _CLOSED if network.version == literal.version)


def read_public(url: object, *, allow_private: bool, field: str = "webhook_url") -> Endpoint:
    """The endpoint of an address that a caller gave; one that may not be called is refused.

    `allow_private`: the operator lets callers name addresses of private networks.
    """
    parts = _split(url, field)
    if parts.scheme != "https" and not (allow_private and parts.scheme == "http"):
        raise _refused(field, "must begin with https://")
    if "@" in parts.netloc:
        raise _refused(field, "holds a user or a password: leave them out")
    host, port = parts.hostname or "", parts.port
    if port == 0:
        raise _refused(field, "names port 0")
    literal = _literal(host, bracketed="[" in parts.netloc, field=field)
    if not allow_private:
        if literal and not is_public(host):
            raise _private(field)
        if not literal and ("." not in host.rstrip(".") or host.rstrip(".").endswith(".localhost")):
            raise _private(field)
    shown = f"[{host}]" if ":" in host else host
    return Endpoint(
        parts._replace(fragment="").geturl(),
        f"{shown}:{port or _PORTS[parts.scheme]}",
        host,
        public_only=not allow_private,
    )


async def refuse_private(url: object, *, allow_private: bool, field: str = "webhook_url") -> None:
    """At submit: refuse an address that may not be called, or that nobody can find now."""
    endpoint = read_public(url, allow_private=allow_private, field=field)
    if allow_private or is_public(endpoint.host):
        return
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            entries = await resolve_name(endpoint.host)
    except (OSError, UnicodeError, TimeoutError):
        entries = []
    if not entries:
        raise _refused(field, "cannot be found: its name stands for no address now")
    if not all(is_public(str(entry[4][0])) for entry in entries):
        raise _private(field)


async def resolve_name(host: str, port: int = 0, family: int = 0) -> list[Any]:
    """What a name that a caller gave stands for, as `socket.getaddrinfo` has it."""
    ask = partial(socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM)
    return await asyncio.get_running_loop().run_in_executor(_threads, ask)


def _new_threads() -> None:
    """Also in a forked child, which has none of its parent's."""
    global _threads  # noqa: PLW0603
    _threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="penstock-lookup")


_new_threads()
os.register_at_fork(after_in_child=_new_threads)


def _split(url: object, field: str) -> SplitResult:
    if not isinstance(url, str) or not 1 <= len(url) <= URL_MAX:
        raise _refused(field, f"must be an address of 1 to {URL_MAX} characters")
    if _ODD.search(url):
        raise _refused(field, "holds a character that an address cannot have: encode it with %")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise _refused(field, "is not an address: its host or port cannot be read") from None
    if not parts.hostname:
        raise _refused(field, "names no host")
    return parts


def _literal(host: str, *, bracketed: bool, field: str) -> bool:
    """Whether the host is an address in digits. One in an odd form is refused: others read it so.

    2130706433, 0x7f.1 and 0177.0.0.1 are 127.0.0.1 to some, and a name to others.
    """
    last = host.rstrip(".").rpartition(".")[2]
    try:
        if bracketed:
            ipaddress.IPv6Address(host)
            odd = "%" in host
        elif _NUMBER.fullmatch(last):
            ipaddress.IPv4Address(host)
            odd = False
        else:
            odd = len(host) > 253 or not _NAME.fullmatch(host)  # noqa: PLR2004
            if not odd:
                return False
    except ValueError:
        odd = True
    if odd:
        raise _refused(field, "names no host that can be called: is it written in full?")
    return True


def _private(field: str) -> Invalid:
    return _refused(field, "leads to an address that is not public, and is not called")


def _refused(field: str, reason: str) -> Invalid:
    return Invalid(
        f"{field} {reason}",
        code="address_not_allowed",
        field=field,
        hint="It must be an https:// address that anybody can reach; with PENSTOCK_ALLOW_PRIVATE=1 "
        "the operator lets others through, to try it out.",
    )
