"""A port that listens, and can stop listening without giving the port away.

While it rests the socket stays bound and does not listen: clients are refused, as by a server that
is down, and nobody else can take the port in the meantime.
"""

import asyncio
import contextlib
import errno
import socket

from penstock.errors import Misconfigured
from penstock.models.simulated.connection import Connection, Handler

_BACKLOG = 1_024
# How many waiting clients are taken at one wake-up, before others get their turn.
_AT_ONCE = 64


class Listener:
    def __init__(self, host: str, port: int, handler: Handler) -> None:
        self._host, self._port = host, port
        self._handler = handler
        self._socket: socket.socket | None = None
        self._listens = False
        self._accepting: set[asyncio.Task[object]] = set()
        self.connections: set[Connection] = set()

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def listens(self) -> bool:
        return self._listens

    def start(self) -> None:
        """Listen. From the first time on, the port is ours until `close`."""
        if self._listens:
            return
        if self._socket is None:
            self._socket = self._bound()
            self._port = self._socket.getsockname()[1]
        # Connections inherit it; what is left of one without it would keep us from binding again.
        _reuse(self._socket, on=True)
        self._socket.listen(_BACKLOG)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)
        self._listens = True

    def stop(self) -> None:
        """Refuse who comes, and reset who is there."""
        if not self._listens:
            return
        self.close()
        self._socket = self._bound()

    def close(self) -> None:
        if self._socket is not None:
            if self._listens:
                asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._listens = False
        for connection in list(self.connections):
            connection.reset()

    def _bound(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            _reuse(bound, on=True)
            bound.settimeout(0)
            bound.bind((self._host, self._port))
            # On, another program that sets it could take the port while this one does not listen.
            _reuse(bound, on=False)
        except OSError as error:
            bound.close()
            if error.errno == errno.EADDRINUSE:
                raise Misconfigured(
                    f"Port {self._port} of {self._host} is taken by another program (11434 is"
                    " Ollama's own). Stop it, or choose another port; 0 takes a free one."
                ) from None
            raise Misconfigured(
                f"Cannot listen at {self._host}, port {self._port}: {error.strerror or error}."
            ) from None
        return bound

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_AT_ONCE):
            if self._socket is None:
                return
            try:
                client, _address = self._socket.accept()
            except OSError:  # nobody more waits, or who waited has left
                return
            client.settimeout(0)
            with contextlib.suppress(OSError):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made = loop.create_task(loop.connect_accepted_socket(self._connection, client))
            self._accepting.add(made)
            made.add_done_callback(self._accepting.discard)

    def _connection(self) -> Connection:
        return Connection(self._handler, self.connections)


def _reuse(bound: socket.socket, *, on: bool) -> None:
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, on)
