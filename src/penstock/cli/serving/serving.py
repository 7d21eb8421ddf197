"""Running the HTTP API in this process: a socket, uvicorn on it, and how it is told to stop."""

import asyncio
import errno
import importlib.util
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Self

import typer
import uvicorn
from starlette.applications import Starlette

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
# What a shell adds to the number of the signal that ended a program.
_BY_SIGNAL = 128
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
    found = []
    for one in map(ipaddress.ip_network, networks):
        found.append(str(one))
        if one.version == 4:  # noqa: PLR2004
            found.append(f"::ffff:{one.network_address}/{_MAPPED_BITS + one.prefixlen}")
    return found


class _Server(uvicorn.Server):
    """One that leaves signals to us, and says when it is ready."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

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
    install: Install | None = None,
    on_told: Callable[[], None] | None = None,
    life: int | None = None,
) -> None:
    """Serve until told to stop.

    `on_ready` gets the database's address; `beside` is entered before, and left at the end;
    `install` adds routes; `on_told` is called for each signal; `life` is a pipe whose end is ours.
    """
    read_roots(app.settings)  # says what is missing
    raise_descriptors()

    early: list[int] = []

    async def serve() -> list[int]:
        _listen_early(early)
        async with beside():
            return await _serve_app(app, sock, on_ready, install, on_told, worker=worker, life=life)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            heard = runner.run(serve())
        except asyncio.CancelledError:
            if not early:
                raise
            raise typer.Exit(_BY_SIGNAL + early[-1]) from None
    if len(heard) > 1:
        raise typer.Exit(_BY_SIGNAL + heard[-1])


def _listen_early(heard: list[int]) -> None:
    """Signals before there is a server to be told: what was begun is ended, and that is all."""
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()

    def hear(number: int) -> None:
        heard.append(number)
        _say("Stopping.")
        if starting is not None:
            starting.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear, number)


def _say(text: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        typer.echo(text, err=True)


async def _serve_app(  # noqa: PLR0913  # as `run`
    app: "Penstock",
    sock: socket.socket,
    on_ready: Callable[[str], None],
    install: Install | None,
    on_told: Callable[[], None] | None,
    *,
    worker: bool,
    life: int | None,
) -> list[int]:
    try:
        # Here and not in the server: what is wrong is a sentence for who started it.
        await app.engine()
        served = api(app, base=url_of(sock), worker=worker, standing=True)
        if install is not None:
            install(served)
        config = uvicorn.Config(
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
        dsn = await app.dsn()
        server = _Server(config, lambda: on_ready(dsn))
        with _Told(server, served, life, on_told) as told:
            await server.serve(sockets=[sock])
        if not server.started and not told.heard:
            raise Misconfigured("The server did not start; its log says why.")
        return told.heard
    finally:
        await app.close()


class _Told:
    """The first signal asks the server to leave, the second makes it."""

    def __init__(
        self,
        server: _Server,
        served: Starlette,
        life: int | None,
        on_told: Callable[[], None] | None,
    ) -> None:
        self._server = server
        self._served = served
        self._life = life
        self._on_told = on_told
        self.heard: list[int] = []

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._hear, number)
        if self._life is not None:
            loop.add_reader(self._life, self._orphaned)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if self._life is not None:
            loop.remove_reader(self._life)

    def _hear(self, number: int) -> None:
        self.heard.append(number)
        self._server.should_exit = True
        if self._on_told is not None:
            self._on_told()
        if len(self.heard) == 1:
            said = "Stopping: open requests may end. Once more leaves at once."
            if self._server.started:
                leave(self._served)
        else:
            said = "Leaving now."
            self._server.force_exit = True
            if self._server.started:
                leave_now(self._served)
        _say(said)

    def _orphaned(self) -> None:
        """Whoever started us is gone."""
        if self._life is not None and not os.read(self._life, 1):
            asyncio.get_running_loop().remove_reader(self._life)
            self._life = None
            self._hear(signal.SIGTERM)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
