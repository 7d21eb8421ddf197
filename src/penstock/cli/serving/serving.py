"""Running the HTTP API in this process: a socket, uvicorn on it, and how it is told to stop."""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import typer
import uvicorn
from starlette.applications import Starlette

from penstock.cli.output.console import print_error
from penstock.cli.serving.loop import BY_SIGNAL, run_loop, stop_signals
from penstock.cli.serving.protocol import BoundedProtocol
from penstock.errors import Misconfigured
from penstock.http.middleware.limits import raise_descriptors
from penstock.security.roots import read_roots
from penstock.server import api, leave, leave_now
from penstock.worker.memory import settle_memory

if TYPE_CHECKING:
    from penstock.client.app import Penstock

# Open requests have so long to end; then the worker beside, if any, has given back what it ran.
GRACEFUL_SECONDS = 8
# After a restart thousands of streams come back in the same moment; the system may allow fewer.
_BACKLOG = 8_192
_MAPPED_BITS = 96
Beside = Callable[[], AbstractAsyncContextManager[None]]
Install = Callable[[Starlette], None]
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  # to be known, not to be used


def listen(host: str, port: int) -> socket.socket:
    """The address, taken before anything else is begun; 0 takes any port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        hint = (
            "Is a server running there already? --port takes another."
            if error.errno == errno.EADDRINUSE
            else "--host takes an address of this machine, --port one that you may use."
        )
        raise Misconfigured(
            f"The address {host} port {port} cannot be used: {error.strerror or error}. {hint}"
        ) from None
    return sock


def url_of(sock: socket.socket) -> str:
    """Where this machine reaches it."""
    host, port = sock.getsockname()[:2]
    if host in _EVERYWHERE:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def with_mapped(networks: tuple[str, ...]) -> list[str]:
    """These networks, also as a socket shows them that listens to both versions of IP."""
    written = []
    for network in map(ipaddress.ip_network, networks):
        written.append(str(network))
        if network.version == 4:  # noqa: PLR2004
            written.append(f"::ffff:{network.network_address}/{_MAPPED_BITS + network.prefixlen}")
    return written


class _Server(uvicorn.Server):
    """One that leaves signals to us, and says when it is ready."""

    def __init__(
        self,
        app: "Penstock",
        served: Starlette,
        on_ready: Callable[[], None],
        on_stop: Callable[[], None],
    ) -> None:
        super().__init__(_config(app, served))
        self._served = served
        self._on_ready = on_ready
        self._on_stop = on_stop

    def stop(self, times: int) -> None:
        """The first signal asks the server to leave, the second makes it."""
        is_first = times == 1
        self.should_exit, self.force_exit = True, not is_first
        self._on_stop()
        if self.started:
            (leave if is_first else leave_now)(self._served)
        first = "Stopping: open requests may end. Once more leaves at once."
        print_error(first if is_first else "Leaving now.")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # The collector took more than half of a connect, looking through all that is loaded.
        settle_memory()
        if not self.should_exit:
            self._on_ready()


def run(  # noqa: PLR0913  # all named
    app: "Penstock",
    sock: socket.socket,
    *,
    worker: bool,
    on_ready: Callable[[str], None],
    beside: Beside = nullcontext,
    install: Install = lambda _: None,
    on_stop: Callable[[], None] = lambda: None,
    life: int | None = None,
) -> None:
    """Serve until told to stop.

    `on_ready` gets the database's address; `beside` is entered before, and left at the end;
    `install` adds routes; `on_stop` is called for each signal; `life` is a pipe whose end is ours.
    """
    read_roots(app.settings)  # refuses what is missing
    raise_descriptors()

    async def serve() -> list[int]:
        try:
            # Here and not in the server: what is wrong is a sentence for who started it.
            await app.engine()
            served = api(app, base=url_of(sock), worker=worker, standing=True)
            install(served)
            dsn = await app.dsn()
            server = _Server(app, served, lambda: on_ready(dsn), on_stop)
            with stop_signals(server.stop, life=life) as received:
                await server.serve(sockets=[sock])
            if not server.started and not received:
                raise Misconfigured("The server did not start; its log says why.")
            return received
        finally:
            await app.close()

    if code := run_loop(_until_stopped(beside, serve)):
        raise typer.Exit(code)


async def _until_stopped(beside: Beside, serve: Callable[[], Awaitable[list[int]]]) -> int:
    """The exit code. Of a signal before there is a server that could stop: what was begun ends."""
    starting = asyncio.current_task()

    def cancel_start(_: int) -> None:
        print_error("Stopping.")
        if starting is not None:
            starting.cancel()

    with stop_signals(cancel_start) as early:
        try:
            async with beside():
                received = await serve()
        except asyncio.CancelledError:
            if not early:
                raise
            return BY_SIGNAL + early[-1]
    return BY_SIGNAL + received[-1] if len(received) > 1 else 0


def _config(app: "Penstock", served: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        served,
        http=BoundedProtocol,
        backlog=_BACKLOG,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # Without a name of a proxy nobody is believed: by default uvicorn believes 127.0.0.1,
        # and a proxy there that passes on a client's own header.
        proxy_headers=bool(app.settings.proxies),
        forwarded_allow_ips=with_mapped(app.settings.proxies),
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )
