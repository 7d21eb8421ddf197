"""Whether an address lies in a private network: the promise of a queue with `local_only`.

Looked at twice. At start the name is judged, so that a mistake is told before any job runs. At each
connect the address it stands for then is judged again (transport.py): a name may move.
"""

import concurrent.futures
import ipaddress
import socket
from contextlib import suppress

from penstock.errors import Invalid

# Those and no others: `is_private` of the standard library also counts ranges for documentation
# and benchmarks, which are routed somewhere after all.
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
# Names that nobody can register in the public DNS.
_SUFFIXES = (".local", ".internal", ".lan", ".localhost", ".home.arpa")
_ALLOWED = (
    "an address of a private network (127.0.0.0/8, 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, "
    "169.254.0.0/16, ::1, fc00::/7, fe80::/10), or a name without dots or in .local, .internal or "
    ".lan that stands for one"
)
# A name that takes longer is judged when it is called.
_LOOKUP_SECONDS = 2.0


def is_private(address: str) -> bool:
    """Whether this address, as digits, is one of a private network."""
    literal = _literal(address)
    if isinstance(literal, ipaddress.IPv6Address) and literal.ipv4_mapped is not None:
        literal = literal.ipv4_mapped
    return literal is not None and any(
        literal in network for network in _NETWORKS if network.version == literal.version
    )


def is_literal(host: str) -> bool:
    """Whether the host is an address itself, and no name is asked for."""
    return _literal(host) is not None


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host.partition("%")[0])
    return None


def is_own(host: str) -> bool:
    """Whether it is an address of a private network, or a name that can be of one only."""
    return is_private(host) or _is_own_name(host)


def _is_own_name(name: str) -> bool:
    return bool(name) and not is_literal(name) and ("." not in name or name.endswith(_SUFFIXES))


def refuse_outside(host: str, what: str = "url") -> None:
    """At start: refuse a host that is not of a private network, with a sentence."""
    if is_literal(host):
        if not is_private(host):
            raise _refused(host, what, "which is outside of private networks")
        return
    name = host.lower().rstrip(".")
    if not _is_own_name(name):
        raise _refused(host, what, "a public name")
    if any(not is_private(address) for address in _addresses(name)):
        raise _refused(host, what, "which stands for an address outside of private networks")


def _addresses(name: str) -> list[str]:
    """What the name stands for now; nothing where that is not known here, or not soon."""
    # Not the loop's own: this runs before there is one. Not waited for at the end either.
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
