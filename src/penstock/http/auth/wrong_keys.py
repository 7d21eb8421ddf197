"""How many wrong keys an address has sent: past a bound, guesses from there are not compared.

In each process for itself. Of IPv6 a /64 is one address, since a single caller has all of it.
"""

import ipaddress
import logging
import time
from collections import OrderedDict

from starlette.requests import Request

from penstock.errors import RateLimited

# Wrong keys from one address in a minute.
FAILURES = 30
FAILURES_SECONDS = 60.0
_MOST_ADDRESSES = 10_000
_NETWORK_BITS = 64

_log = logging.getLogger("penstock.http")


class Failures:
    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def is_over(self, request: Request) -> bool:
        """Whether its address has sent too many."""
        return self._count(address_of(request))[1] >= FAILURES

    def count(self, request: Request) -> bool:
        """Count a wrong key; False: its address had sent too many before."""
        address = address_of(request)
        since, count = self._count(address)
        if count >= FAILURES:
            return False
        self._counts[address] = (since, count + 1)
        self._counts.move_to_end(address)
        while len(self._counts) > _MOST_ADDRESSES:
            self._counts.popitem(last=False)
        if count + 1 == FAILURES:
            _warn(request, address)
        return True

    def forgive(self, request: Request) -> None:
        """What was counted just now was the right one."""
        address = address_of(request)
        since, count = self._count(address)
        if count > 1:
            self._counts[address] = (since, count - 1)
        else:
            self._counts.pop(address, None)

    def refusal(self, request: Request) -> RateLimited:
        since, _ = self._count(address_of(request))
        return RateLimited(
            "too many wrong keys came from this address",
            code="too_many_failures",
            retry_after=round(max(0.0, since + FAILURES_SECONDS - time.monotonic()), 1),
        )

    def _count(self, address: str) -> tuple[float, int]:
        now = time.monotonic()
        since, count = self._counts.get(address, (now, 0))
        return (since, count) if since + FAILURES_SECONDS > now else (now, 0)


def address_of(request: Request) -> str:
    """Where a request comes from, by the connection or by a proxy that we trust."""
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        network = int(address) >> _NETWORK_BITS << _NETWORK_BITS
        return f"{ipaddress.IPv6Address(network)}/{_NETWORK_BITS}"
    return host


def _warn(request: Request, address: str) -> None:
    """A proxy that nobody has named looks like a caller with very many wrong keys."""
    hint = (
        ""
        if request.headers.get("x-forwarded-for") is None
        else "; if that is a proxy of yours, name it in PENSTOCK_PROXIES, or all who come through"
        " it count as one"
    )
    _log.warning(
        "%d wrong keys came from %s within a minute, more are refused%s", FAILURES, address, hint
    )
