"""Addresses that callers give: they must not lead into the operator's own network.

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
# Simultaneous lookups, in separate threads: an attacker can make a name slow to resolve. A few such
# names would block the loop's own threads, and with them uploads and the lookups of providers.
LOOKUPS = 16
_PORTS = {"http": 80, "https": 443}

# Networks that the standard library counts as global although they are not public.
_CLOSED = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # shared by the customers of a provider
        "168.63.129.16/32",  # the metadata service of Azure
        "169.254.0.0/16",  # that of most other clouds
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",  # relays to IPv6 networks
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",  # contains an IPv4 address
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)
# The rest of IPv6 has private networks, and IPv4 addresses in other forms.
_OPEN_6 = ipaddress.ip_network("2000::/3")
_ODD = re.compile(r"""[^!-~]|[\\<>"{}|^`]""")
_NAME = re.compile(
    r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.?"
)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


_threads: ThreadPoolExecutor


def is_public(address: str) -> bool:
    """Whether this numeric address is publicly reachable."""
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
    """Return the endpoint of a caller's address; refuse an address that may not be called.

    `allow_private`: the operator allows callers to give addresses of private networks.
    """
    parts = _split(url, field)
    if parts.scheme != "https" and not (allow_private and parts.scheme == "http"):
        raise _refused(field, "must begin with https://")
    if "@" in parts.netloc:
        raise _refused(field, "contains a user or a password: leave them out")
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
    """Refuse an address at submit that may not be called or cannot be resolved now."""
    endpoint = read_public(url, allow_private=allow_private, field=field)
    if allow_private or is_public(endpoint.host):
        return
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            entries = await resolve_name(endpoint.host)
    except (OSError, UnicodeError, TimeoutError):
        entries = []
    if not entries:
        raise _refused(field, "cannot be found: its name does not resolve to an address now")
    if not all(is_public(str(entry[4][0])) for entry in entries):
        raise _private(field)


async def resolve_name(host: str, port: int = 0, family: int = 0) -> list[Any]:
    """Resolve a name that a caller gave; the result is as of `socket.getaddrinfo`."""
    ask = partial(socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM)
    return await asyncio.get_running_loop().run_in_executor(_threads, ask)


def _new_threads() -> None:
    """Create the thread pool; also in a forked child, which does not have its parent's threads."""
    global _threads  # noqa: PLW0603
    _threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="penstock-lookup")


_new_threads()
os.register_at_fork(after_in_child=_new_threads)


def _split(url: object, field: str) -> SplitResult:
    if not isinstance(url, str) or not 1 <= len(url) <= URL_MAX:
        raise _refused(field, f"must be an address of 1 to {URL_MAX} characters")
    if _ODD.search(url):
        raise _refused(field, "contains a character that is not allowed: encode it with %")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise _refused(field, "is not an address: its host or port cannot be read") from None
    if not parts.hostname:
        raise _refused(field, "names no host")
    return parts


def _literal(host: str, *, bracketed: bool, field: str) -> bool:
    """Return whether the host is a numeric address; refuse unusual forms of one.

    Some resolvers read 2130706433, 0x7f.1 and 0177.0.0.1 as 127.0.0.1, and others as names.
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
        raise _refused(field, "names no host that can be called: write it in full")
    return True


def _private(field: str) -> Invalid:
    return _refused(field, "leads to an address that is not public, so it is not called")


def _refused(field: str, reason: str) -> Invalid:
    return Invalid(
        f"{field} {reason}",
        code="address_not_allowed",
        field=field,
        hint="It must be a publicly reachable https:// address. With PENSTOCK_ALLOW_PRIVATE=1 the "
        "operator allows others, for tests.",
    )
