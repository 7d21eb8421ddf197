"""Outgoing HTTP: one client per event loop, and the meaning of its failures.

aiohttp and not httpx2 (15 November 2026, one run, uvloop, two cores): 43 against 87 µs of processor
time a streamed token with 20 streams open, 25 against 127 with 1,000, 177 against 527 µs a request.
httpx2 loads faster (0.10 against 0.24 s). Both close a cancelled call's connection within 4 ms.

Redirects are not followed: an API that has moved is a configuration error, and the key would be
sent to the new address. Proxies of the environment are not used, since an HTTP_PROXY for another
purpose would see every prompt; a job names its proxy. Nothing is retried here: the queue is the
only retry loop.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from socket import AI_NUMERICHOST, AI_NUMERICSERV, AddressFamily
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.helpers import is_ip_address
from aiohttp.resolver import DefaultResolver, ThreadedResolver
from yarl import URL

from penstock.net.endpoint import Endpoint
from penstock.net.private_addresses import is_literal, is_private
from penstock.net.provider_errors import ProviderError
from penstock.net.public_addresses import is_public, resolve_name
from penstock.net.signal import Signal, from_body, plain_headers

CONNECT_SECONDS = 5.0
# An idle connection is kept for less time than servers keep it (2 s and more): a call sent while
# the server closes the connection would be lost, and with it an attempt.
KEEP_SECONDS = 1.0
# How long, and how much of, an error's body is read.
ERROR_SECONDS = 5.0
ERROR_BYTES = 65_536
# How long to wait for the rest after a stream's last event: longer is not worth the connection.
FINISH_SECONDS = 0.1
CLOSE_SECONDS = 5.0


_OUTSIDE = "outside of private networks, and the queue is local_only"
_NOT_PUBLIC = "not public"


class WrongNetwork(Exception):  # noqa: N818
    """The address, or one that its name resolves to now, is not in the networks to be called."""


class Transport:
    """The client of one event loop: `here()` returns it, and the end of the loop closes it."""

    def __init__(self) -> None:
        self._sessions: dict[type[AbstractResolver], aiohttp.ClientSession] = {}
        self.busy = 0
        """The number of calls in progress."""

    @classmethod
    async def here(cls) -> "Transport":
        """Return the transport of the running loop."""
        loop = asyncio.get_running_loop()
        entry = _transports.get(loop)
        if entry is None:
            for closed in [other for other in _transports if other.is_closed()]:
                del _transports[closed]
            transport = cls()
            entry = _transports[loop] = (transport, _keep(loop, transport))
            # An orderly end of the loop closes its open async generators.
            await anext(entry[1])
        return entry[0]

    @property
    def idle(self) -> int:
        """The number of idle connections."""
        return sum(
            len(waiting)
            for session in self._sessions.values()
            if session.connector is not None
            for waiting in session.connector._conns.values()  # noqa: SLF001  # there is no public name
        )

    @asynccontextmanager
    async def post(
        self, endpoint: Endpoint, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator["Answer"]:
        """Send a request; read the answer inside. Leaving early closes the connection at once.

        So a cancelled job stops the model: Ollama generates while the connection is open.
        """
        self.busy += 1
        try:
            response = await self._send(endpoint, body, headers)
            answer = Answer(response, endpoint.address)
            try:
                yield answer
            except aiohttp.ClientError as error:
                raise _failure(error, endpoint.address, received=True) from None
            finally:
                if answer.complete:
                    response.release()
                else:
                    response.close()
        finally:
            self.busy -= 1

    async def _send(
        self, endpoint: Endpoint, body: bytes, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        try:
            _refuse_literal(endpoint)
            authorization = endpoint.authorization
            own = {"Authorization": authorization.reveal()} if authorization else {}
            return await self._session(_resolver(endpoint)).post(
                endpoint.url,
                data=body,
                headers={"Content-Type": "application/json", **own, **headers},
                allow_redirects=False,
                proxy=endpoint.proxy.reveal() if endpoint.proxy else None,
            )
        except WrongNetwork as error:
            raise ProviderError(
                f"{endpoint.address} resolves to an address that is {error}; nothing was sent",
                Signal(exception="remote_host", address=endpoint.address),
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failure(error, endpoint.address, received=False) from None

    def _session(self, resolver: type[AbstractResolver]) -> aiohttp.ClientSession:
        # One session per resolver: a connection whose address was not checked must not be reused
        # by a call that requires the check.
        session = self._sessions.get(resolver)
        if session is None:
            session = self._sessions[resolver] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,  # the queue's concurrency is the limit
                    keepalive_timeout=KEEP_SECONDS,
                    resolver=resolver(),
                ),
                timeout=aiohttp.ClientTimeout(
                    total=None, connect=CONNECT_SECONDS, sock_connect=CONNECT_SECONDS
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                # A compressed stream arrives in lumps, and a small body may expand to a huge one.
                headers={"User-Agent": "penstock", "Accept-Encoding": "identity"},
                trust_env=False,
            )
        return session

    async def close(self) -> None:
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            await session.close()


class Answer:
    """An answer whose status and headers have arrived."""

    __slots__ = ("_response", "address", "complete", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, address: str) -> None:
        self._response = response
        self.address = address
        self.status = response.status
        self.headers = plain_headers(response.headers)
        self.complete = False

    async def chunk(self) -> bytes:
        """Return the next bytes of the body; empty: it is complete."""
        chunk = await self._response.content.readany()
        self.complete = not chunk
        return chunk

    async def read(self, most: int) -> bytes | None:
        """Read the whole body; None: it has more than `most` bytes."""
        body = bytearray()
        while chunk := await self.chunk():
            body += chunk
            if len(body) > most:
                return None
        return bytes(body)

    async def finish(self) -> None:
        """Read the rest of a finished stream, so that the connection can be kept."""
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(FINISH_SECONDS):
                while await self.chunk():
                    pass

    async def refusal(self, who: str) -> ProviderError:
        """Read an answer with an error status; return it as an exception."""
        body = bytearray()
        # If the body is incomplete or late, the status is enough.
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(ERROR_SECONDS):
                while len(body) <= ERROR_BYTES and (chunk := await self.chunk()):
                    body += chunk
        signal = from_body(self.status, self.headers, bytes(body[:ERROR_BYTES]), self.address)
        named = f", {signal.code}" if signal.code else ""
        return ProviderError(
            f"{who} at {self.address} answered with status {self.status}{named}", signal
        )


class LocalResolver(ThreadedResolver):
    """Resolves names as the system does, and refuses addresses outside of private networks."""

    async def resolve(
        self, host: str, port: int = 0, family: AddressFamily = AddressFamily.AF_UNSPEC
    ) -> list[ResolveResult]:
        results = await super().resolve(host, port, family)
        # All must be private: the connection goes to the one that answers first.
        if not all(is_private(result["host"]) for result in results):
            raise WrongNetwork(_OUTSIDE)
        return results


class PublicResolver(AbstractResolver):
    """Resolves names as the system does, and refuses addresses that are not public.

    The connection goes to a checked address: the name is not resolved again.
    """

    async def resolve(
        self, host: str, port: int = 0, family: AddressFamily = AddressFamily.AF_UNSPEC
    ) -> list[ResolveResult]:
        entries = await resolve_name(host, port, family)
        if not entries or not all(is_public(entry[4][0]) for entry in entries):
            raise WrongNetwork(_NOT_PUBLIC)
        return [
            ResolveResult(
                hostname=host,
                host=address[0],
                port=address[1],
                family=version,
                proto=protocol,
                flags=AI_NUMERICHOST | AI_NUMERICSERV,
            )
            for version, _, protocol, _, address in entries
        ]

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _resolver(endpoint: Endpoint) -> type[AbstractResolver]:
    if endpoint.public_only:
        return PublicResolver
    return LocalResolver if endpoint.local_only else DefaultResolver


def _refuse_literal(endpoint: Endpoint) -> None:
    """Refuse a numeric address, for which the resolver is not called."""
    if endpoint.local_only and is_literal(endpoint.host) and not is_private(endpoint.host):
        raise WrongNetwork(_OUTSIDE)
    if endpoint.public_only:
        # As the resolver gets it: `host` would be the name in its own alphabet (bücher.example).
        host = URL(endpoint.url).raw_host or ""
        if not (is_public(host) if is_ip_address(host) else host == endpoint.host):
            raise WrongNetwork(_NOT_PUBLIC)


def _failure(error: Exception, address: str, *, received: bool) -> ProviderError:
    kind, message = next(
        (kind, message) for classes, kind, message in _FAILURES if isinstance(error, classes)
    )
    return ProviderError(
        f"{address} {message.format(seconds=CONNECT_SECONDS)}",
        Signal(exception=kind, address=address, received=received),
    )


# The kind of each failure in a Signal, and the end of its message; an exception's own message may
# quote a URL. The first match counts.
_FAILURES: tuple[tuple[tuple[type[Exception], ...], str, str], ...] = (
    (
        (aiohttp.ClientConnectorDNSError,),
        "dns",
        "cannot be found: its name does not resolve to an address",
    ),
    (
        (aiohttp.ClientConnectorCertificateError,),
        "tls",
        "has a certificate that is not trusted here",
    ),
    ((aiohttp.ClientSSLError, ssl.SSLError), "tls", "cannot be reached by TLS"),
    (
        (aiohttp.ConnectionTimeoutError,),
        "connect_timeout",
        "did not accept the connection within {seconds:g} s",
    ),
    (
        (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError),
        "connect",
        "does not accept connections",
    ),
    ((aiohttp.ServerTimeoutError,), "read_timeout", "did not answer in time"),
    (
        (aiohttp.ServerDisconnectedError, OSError),
        "reset",
        "closed the connection before its answer was complete",
    ),
    ((Exception,), "incomplete", "broke off its answer, or sent invalid HTTP"),
)

_transports: dict[asyncio.AbstractEventLoop, tuple[Transport, AsyncGenerator[None, None]]] = {}
_the_parents: list[Any] = []


async def _keep(
    loop: asyncio.AbstractEventLoop, transport: Transport
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        _transports.pop(loop, None)
        async with asyncio.timeout(CLOSE_SECONDS):
            await transport.close()


async def close_transport() -> None:
    """Close the transport of the running loop before the loop ends."""
    entry = _transports.get(asyncio.get_running_loop())
    if entry is not None:
        await entry[1].aclose()


def _forget_in_child() -> None:
    """Drop the parent's transports in a forked child, which must not use or even close them."""
    _the_parents.append(dict(_transports))
    _transports.clear()


os.register_at_fork(after_in_child=_forget_in_child)
