"""Check that an address is in a private network, as a queue with `local_only` guarantees.

It is checked twice. At start the name is checked, so that a mistake is reported before any job
runs. At each connect the resolved address is checked again (transport.py), since a name may resolve
to another address by then.
"""

import concurrent.futures
import ipaddress
import socket
from contextlib import suppress

from penstock.errors import Invalid

# Only these: `is_private` of the standard library also has the ranges for documentation and
# benchmarks, which some networks route nevertheless.
_NETWORKS = tuple(
    ipaddress.ip_network(network)
    for network in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "::1/128",
        "fc00::/7",
        "fe80::/10",
    )
)
# Suffixes that cannot be registered in the public DNS.
_SUFFIXES = (".local", ".internal", ".lan", ".localhost", ".home.arpa")
_ALLOWED = (
    "an address of a private network (127.0.0.0/8, 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, "
    "169.254.0.0/16, ::1, fc00::/7, fe80::/10), or a name without dots or in .local, .internal or "
    ".lan that resolves to one"
)
# A name that takes longer to resolve is checked only when it is called.
_LOOKUP_SECONDS = 2.0


def is_private(address: str) -> bool:
    """Whether this numeric address is in a private network."""
    literal = _literal(address)
    if isinstance(literal, ipaddress.IPv6Address) and literal.ipv4_mapped is not None:
        literal = literal.ipv4_mapped
    return literal is not None and any(
        literal in network for network in _NETWORKS if network.version == literal.version
    )


def is_literal(host: str) -> bool:
    """Whether the host is a numeric address, so that no name is resolved."""
    return _literal(host) is not None


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host.partition("%")[0])
    return None


def is_own(host: str) -> bool:
    """Whether the host is an address of a private network, or a name that can only be of one."""
    return is_private(host) or _is_own_name(host)


def _is_own_name(name: str) -> bool:
    return bool(name) and not is_literal(name) and ("." not in name or name.endswith(_SUFFIXES))


def refuse_outside(host: str, what: str = "url") -> None:
    """Refuse a host outside of private networks, at start, with an explanation."""
    if is_literal(host):
        if not is_private(host):
            raise _refused(host, what, "which is outside of private networks")
        return
    name = host.lower().rstrip(".")
    if not _is_own_name(name):
        raise _refused(host, what, "a public name")
    if any(not is_private(address) for address in _addresses(name)):
        raise _refused(host, what, "which resolves to an address outside of private networks")


def _addresses(name: str) -> list[str]:
    """Resolve a name; empty if it is unknown here, or the lookup takes too long."""
    # Not the loop's executor: there is no loop yet. At the end the thread is not waited for.
    pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="penstock-lookup")
    try:
        entries = pool.submit(socket.getaddrinfo, name, None, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in entries.result(_LOOKUP_SECONDS)]
    except (OSError, UnicodeError, TimeoutError):
        return []
    finally:
        pool.shutdown(wait=False)


def _refused(host: str, what: str, why: str) -> Invalid:
    return Invalid(
        f"{what} leads to {host}, {why}; a job on a queue with local_only may call {_ALLOWED}",
        code="invalid_option",
        field=what,
    )
