"""The server of both the simulated and the real model: ports, the log of calls, slots, commands.

Commands are accepted at the model's own port, and at a control port that stays open while the model
refuses connections:

GET /_calls     the calls so far and their outcome
POST /_order    {"fault": "status", "code": 503, "times": 3, "seconds": 10, "path": "/api/chat",
                "chance": 0.5, "contains": "words of a prompt"}; without limits, until healed
POST /_heal     remove all faults
POST /_stop     close the port; /_start opens it again

Commands need no key. To keep out web pages in a browser on this machine, a command is accepted
only without an Origin header, and only with the listening host (or localhost) as its Host.
"""

import asyncio
import hmac
import json
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import asdict
from datetime import datetime
from types import TracebackType
from typing import Any, TextIO
from urllib.parse import urlsplit

from penstock.errors import Invalid, Misconfigured
from penstock.models.simulated.calls import Call
from penstock.models.simulated.connection import Connection, Listener, Refusal, Request
from penstock.models.simulated.faults.error_bodies import error_body
from penstock.models.simulated.faults.orders import Order, order_from
from penstock.models.simulated.options import Options
from penstock.models.simulated.protocols import ollama, openai
from penstock.net import private_addresses

_log = logging.getLogger("penstock.simulated")

_TEXT = "text/plain; charset=utf-8"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  # only compared with

# A benchmark makes thousands of calls a second; the oldest records are dropped.
_KEPT = 100_000
# Rounds of the loop. A reset connection is closed after one round, its task ends after two.
_ROUNDS = 100


class Slots:
    """The concurrent answers of a model, and the queue of calls in front: first come, first served.

    Without `max_queue` the queue is unlimited, as in Ollama: its own limit does not count requests
    for a model that is loaded.
    """

    def __init__(self, size: int, max_queue: int | None) -> None:
        self.size = size
        self.max_queue = max_queue
        self.most_in_use = 0
        self.waiting = 0
        self.in_use = 0
        self._free = asyncio.Semaphore(size)

    async def __aenter__(self) -> None:
        if self._free.locked() and self.max_queue is not None and self.waiting >= self.max_queue:
            raise Refusal(503, ollama.LINE_FULL)
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        self.in_use += 1
        self.most_in_use = max(self.most_in_use, self.in_use)

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        self.in_use -= 1
        self._free.release()


class Server(ABC):
    def __init__(self, options: Options) -> None:
        self.options = options
        self.slots = Slots(options.slots, options.max_queue)
        self.loaded: dict[str, datetime] = {}
        """The models that have answered, with the time of their last answer."""
        self.calls: deque[Call] = deque(maxlen=_KEPT)
        """The calls in order of arrival, including open ones."""
        self.most_at_once = 0
        """The highest number of calls that were open at the same time."""
        self._total = self._open = 0
        self._log: TextIO | None = None
        if options.log is not None:
            try:
                self._log = options.log.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                raise Misconfigured(f"Cannot write to {options.log}: {error.strerror}.") from None
        self._restart: asyncio.TimerHandle | None = None
        self._listener = Listener(options.host, options.port, self._handle)
        self._control: Listener | None = None
        if options.control is not None:
            self._control = Listener(options.host, options.control, self._handle_command)

    def open(self) -> None:
        """Listen at the model's port and at the control port."""
        if not _is_loopback(self.options.host):
            _log.warning(
                "the model listens at %s, which other machines can reach, and its commands "
                "(/_order, /_stop, ...) need no key: anybody who can connect can use them",
                self.options.host or "every address",
            )
        if self._control is not None:
            self._control.start()
        self.start()

    def close(self) -> None:
        self._cancel_restart()
        self._listener.close()
        if self._control is not None:
            self._control.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    async def gone(self) -> None:
        """Wait until all connections that `close` reset are closed, so that the loop may end."""
        for _ in range(_ROUNDS):
            if not self._listener.connections and not self._open:
                return
            await asyncio.sleep(0)

    def start(self) -> None:
        self._cancel_restart()
        self._listener.start()

    def _cancel_restart(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None

    def take_order(self, order: Order) -> None:
        """Execute `refuse`: refuse connections and reset open ones, for so many seconds."""
        self._listener.stop()
        if order.seconds is not None:
            loop = asyncio.get_running_loop()
            self._restart = loop.call_later(order.seconds, self.start)

    def heal(self) -> None:
        """Remove all faults and open the port. Calls that already hang continue to hang."""
        self.start()

    @property
    def url(self) -> str:
        return self._listener.url

    @property
    def control_url(self) -> str | None:
        return None if self._control is None else self._control.url

    def report(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "listens": self._listener.listens,
            "slots": {
                "size": self.slots.size,
                "in_use": self.slots.in_use,
                "most_in_use": self.slots.most_in_use,
                "waiting": self.slots.waiting,
            },
            "total": self._total,
            "open": self._open,
            "most_at_once": self.most_at_once,
            "calls": [asdict(call) for call in self.calls],
        }

    @abstractmethod
    async def respond(self, request: Request, wire: Connection, call: Call) -> None:
        """Answer one call."""

    def _authorise(self, request: Request) -> None:
        """Refuse a call without the required key; commands need no key."""
        if self.options.api_key is None:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.options.api_key.encode()):
            wrong = "unauthorized" if request.path.startswith("/api/") else "Incorrect API key."
            raise Refusal(401, wrong, "invalid_api_key")

    def answer_without_model(self, request: Request, wire: Connection) -> None:
        """Answer a call that needs no answer of the model; answer unknown paths with 404."""
        match request.method, request.path:
            case "GET", "/":
                wire.send(200, b"Ollama is running", _TEXT)
                return
            case "GET", "/api/version":
                answer: Any = {"version": ollama.VERSION}
            case "GET", "/api/tags":
                answer = ollama.tags(self.options)
            case "GET", "/api/ps":
                answer = ollama.ps(self.loaded, self.options)
            case "POST", "/api/show":
                answer = ollama.show(request.fields(), self.options)
            case "GET", "/v1/models":
                answer = openai.models(self.options)
            case _:
                wire.send(404, b"404 page not found", _TEXT)
                return
        wire.send(200, json.dumps(answer).encode())

    async def _handle(self, request: Request, wire: Connection) -> None:
        if request.path.startswith("/_"):
            await self._handle_command(request, wire)
            return
        self._total += 1
        self._open += 1
        self.most_at_once = max(self.most_at_once, self._open)
        call = Call(request.path, time.time(), self._open)
        self.calls.append(call)
        try:
            self._authorise(request)
            await self.respond(request, wire, call)
        except Refusal as refused:
            body = error_body(request.path, refused.status, refused.message, refused.code)
            wire.send(refused.status, body)
        finally:
            self._open -= 1
            call.ended_at = time.time()
            call.status = wire.status
            call.first_byte_at = wire.first_byte_at
            call.gone = wire.gone
            if self._log is not None:
                self._log.write(json.dumps(asdict(call), separators=(",", ":")) + "\n")

    async def _handle_command(self, request: Request, wire: Connection) -> None:
        if not self._may_command(request):
            wire.send(403, b'{"error":"commands are not taken from web pages or other hosts"}')
            return
        answer: dict[str, Any] = {"ok": True}
        try:
            match request.method, request.path:
                case "GET", "/_calls":
                    answer = self.report()
                case "POST", "/_order":
                    self.take_order(order_from(request.fields()))
                case "POST", "/_heal":
                    self.heal()
                case "POST", "/_start":
                    self.start()
                case "POST", "/_stop":
                    self._listener.stop()
                case _:
                    wire.send(
                        404, b'{"error":"commands are /_calls /_order /_heal /_stop /_start"}'
                    )
                    return
        except (Invalid, Refusal) as wrong:
            wire.send(422, json.dumps({"error": str(wrong)}).encode())
            return
        if not wire.closing:  # a stop at the model's own port has closed this connection
            wire.send(200, json.dumps(answer).encode())

    def _may_command(self, request: Request) -> bool:
        """Return whether a command may be executed: it must not come from a web page.

        A page can send any POST to this machine, but not without an Origin header. If a page's
        own domain name resolves to this machine, its Host header is that name and not ours.
        """
        if "origin" in request.headers:
            return False
        try:
            host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        except ValueError:  # neither an address nor a name
            return False
        if host in _LOOPBACK or host == self.options.host.lower():
            return True
        # The names of this machine are not known; the domain name of a page has dots.
        return self.options.host in _EVERYWHERE and (
            private_addresses.is_literal(host) or private_addresses.is_own(host)
        )


def _is_loopback(host: str) -> bool:
    return host in _LOOPBACK or host.startswith("127.")
