"""Run the HTTP API in this process: a socket, uvicorn on it, and signals that stop it."""

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

# How long open requests may take. By then a worker in this process has released its jobs.
GRACEFUL_SECONDS = 8
# After a restart, thousands of streams connect at once; the system may allow fewer.
_BACKLOG = 8_192
_MAPPED_BITS = 96
Beside = Callable[[], AbstractAsyncContextManager[None]]
Install = Callable[[Starlette], None]
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  # compared with only


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address, before anything else is started; port 0 takes any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        hint = (
            "Is a server running there already? Choose another port with --port."
            if error.errno == errno.EADDRINUSE
            else "--host needs an address of this machine, --port a port that you may use."
        )
        raise Misconfigured(
            f"The address {host} port {port} cannot be used: {error.strerror or error}. {hint}"
        ) from None
    return sock


def url_of(sock: socket.socket) -> str:
    """Return the URL at which this machine reaches the server."""
    host, port = sock.getsockname()[:2]
    if host in _EVERYWHERE:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def with_mapped(networks: tuple[str, ...]) -> list[str]:
    """Return the networks, also in the IPv6 form of a socket that listens to both versions."""
    written = []
    for network in map(ipaddress.ip_network, networks):
        written.append(str(network))
        if network.version == 4:  # noqa: PLR2004
            written.append(f"::ffff:{network.network_address}/{_MAPPED_BITS + network.prefixlen}")
    return written


class _Server(uvicorn.Server):
    """A uvicorn server without signal handlers, which calls back when it is ready."""

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
        """Stop gracefully at the first signal, and at once at the second."""
        is_first = times == 1
        self.should_exit, self.force_exit = True, not is_first
        self._on_stop()
        if self.started:
            (leave if is_first else leave_now)(self._served)
        first = "Stopping: open requests may finish. Once more stops at once."
        print_error(first if is_first else "Leaving now.")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # The garbage collector took more than half of a connect, scanning all loaded modules.
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
    """Serve until stopped.

    `on_ready` gets the database's address. `beside` is entered before, and left at the end.
    `install` adds routes. `on_stop` is called for each signal. The end of the pipe `life` stops it.
    """
    read_roots(app.settings)  # fails now if a secret is missing
    raise_descriptors()

    async def serve() -> list[int]:
        try:
            # Here and not in the server, so that an error is one sentence at the terminal.
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
    """Serve and return the exit code. A signal before the server runs cancels the startup."""
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
        # Without PENSTOCK_PROXIES, forwarded headers are ignored: uvicorn's default trusts
        # 127.0.0.1, and with it a proxy there that passes on a client's own header.
        proxy_headers=bool(app.settings.proxies),
        forwarded_allow_ips=with_mapped(app.settings.proxies),
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )
