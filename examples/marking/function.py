"""The function that marks: it takes an answer, says 202, and calls back with the mark.

python -m marking.function --port 9101 --control 9102 [--seconds 2] [--log FILE]

A stand-in for something that is rented elsewhere. It knows of Penstock what arrives over HTTP, and
imports nothing of it. Each call is served at once, as rented functions are: that there is only one
at a time is the queue's doing. `--control` is for demonstrations: the function can be stopped,
slowed down, made to fail and to repeat itself.
"""

import argparse
import contextlib
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from marking import marker
from marking.signature import Forged, check

HOST = "127.0.0.1"
BODY_BYTES = 1_000_000
SECONDS = 2.0
NO_SENSE = "The model could not make sense of this answer."
CALLBACK_SECONDS = 10.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# The orders and their types.
ORDERS: dict[str, type] = {
    "seconds": float,
    "repeat": int,
    "fail": int,
    "retryable": bool,
    "odd": int,
    "silent": int,
}
# The delay between tries to call back while the job waits for the result.
AGAIN_SECONDS = (0.2, 0.5, 1.0, 2.0)


class Log:
    """A line for each beginning and end: whoever reads it sees how many were at work at once."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()

    def write(self, event: str, **facts: Any) -> None:
        if self._path is not None:
            line = json.dumps({"event": event, "at": time.time(), **facts})
            with self._lock, self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


class Orders:
    """The orders of the control port."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.repeat = 1  # how often each callback is sent
        self.fail = 0  # this many of the next marks fail
        self.retryable = False  # whether such a failure is reported as retryable
        self.odd = 0  # this many of the next marks are invalid
        self.silent = 0  # this many of the next marks never call back
        self._lock = threading.Lock()

    def take(self, name: str) -> bool:
        """Whether the order applies to the next mark; counts it down."""
        with self._lock:
            left: int = getattr(self, name)
            setattr(self, name, max(0, left - 1))
            return left > 0


class Marking:
    """The function: accepts answers, marks them and calls back."""

    def __init__(self, orders: Orders, log: Log) -> None:
        self._orders = orders
        self._log = log
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self._at_work: set[threading.Thread] = set()

    def accept(self, message: str, work: dict[str, Any]) -> None:
        """Start a mark in its own thread; a repeated message changes nothing."""
        with self._lock:
            if message in self._seen:
                return
            self._seen.add(message)
        self._log.write("begin", job=work["job_id"], attempt=work["attempt"])
        thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        with self._lock:
            self._at_work = {one for one in self._at_work if one.is_alive()} | {thread}
            thread.start()

    def rest(self, seconds: float) -> None:
        """Wait until all started marks are reported, or until the time is over."""
        until = time.monotonic() + seconds
        with self._lock:
            at_work = self._at_work
        for thread in at_work:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, work: dict[str, Any]) -> None:
        until = datetime.fromisoformat(work["expires_at"]).timestamp()
        # Who waits longer than this gets it from somebody else: better to stop than to be two.
        in_time = time.time() + self._orders.seconds < until
        time.sleep(self._orders.seconds if in_time else max(0.0, until - time.time()))
        silent = self._orders.take("silent")
        item = {"job_id": work["job_id"], "token": work["token"], **self._outcome(work["payload"])}
        self._log.write("end", job=work["job_id"], attempt=work["attempt"])
        if in_time and not silent:
            for _ in range(self._orders.repeat):
                self._call_back(work["callback_url"], item, until)

    def _outcome(self, payload: dict[str, Any]) -> dict[str, Any]:
        if self._orders.take("fail"):
            error = {
                "class": "bad_output",
                "message": NO_SENSE,
                "public": True,
                "retryable": self._orders.retryable,
            }
            return {"status": "failed", "error": error}
        if self._orders.take("odd"):
            return {"status": "succeeded", "result": {"score": "very good"}}
        return {"status": "succeeded", "result": marker.mark(payload)}

    def _call_back(self, url: str, item: dict[str, Any], until: float) -> None:
        """Call back until the result is accepted, refused or expired. One result, in an array."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps([item]).encode(), headers)  # noqa: S310
        tries = 0
        while time.time() < until:
            try:
                with urllib.request.urlopen(request, timeout=CALLBACK_SECONDS) as reply:  # noqa: S310
                    [told] = json.load(reply)["results"]
            except urllib.error.HTTPError as refused:
                if refused.code < 500 and refused.code != 429:
                    self._log.write("refused", job=item["job_id"], status=refused.code)
                    return
            except (OSError, ValueError, KeyError):
                pass  # the app restarts, or the network failed; try again
            else:
                self._log.write("told", job=item["job_id"], outcome=told["outcome"])
                return
            time.sleep(AGAIN_SECONDS[min(tries, len(AGAIN_SECONDS) - 1)])
            tries += 1


class Door(BaseHTTPRequestHandler):
    """The port for answers to mark; calls without a valid signature are refused."""

    marking: Marking
    secret: str

    def do_POST(self) -> None:
        try:
            body = _body(self)
            message = check(self.secret, dict(self.headers), body)
            work = _work(body)
        except Forged as why:
            _answer(self, 401, {"error": str(why)})
        except (ValueError, KeyError, TypeError):
            _answer(self, 400, {"error": "this is not a job as Penstock hands it over"})
        else:
            self.marking.accept(message, work)
            _answer(self, 202, {"accepted": work["job_id"]})

    def log_message(self, *_: Any) -> None:
        """Log nothing: the requests contain pupils' texts."""


class Control(BaseHTTPRequestHandler):
    """POST /_stop, /_start, and /_order {seconds, repeat, fail, retryable, odd, silent}.

    Not for web pages: they can send a POST to this machine, but not without an Origin, nor with our
    Host under a name of their own.
    """

    function: "Function"

    def do_POST(self) -> None:
        host = urlsplit(f"//{self.headers.get('host', '')}").hostname
        if "origin" in self.headers or host not in LOOPBACK:
            _answer(self, 403, {"error": "this is not for web pages"})
            return
        match self.path:
            case "/_stop":
                self.function.close()
            case "/_start":
                self.function.open()
            case "/_order":
                try:
                    wanted = _orders(_body(self))
                except (ValueError, KeyError, TypeError, AttributeError):
                    _answer(self, 422, {"error": f"orders are {', '.join(ORDERS)}"})
                    return
                for name, value in wanted.items():
                    setattr(self.function.orders, name, value)
            case _:
                _answer(self, 404, {"error": "there are /_stop, /_start and /_order"})
                return
        _answer(self, 200, {"open": self.function.is_open})

    def log_message(self, *_: Any) -> None:
        """Nothing."""


class Function:
    """A server whose port can be closed while its requests continue."""

    def __init__(self, port: int, secret: str, orders: Orders, log: Log) -> None:
        self.orders = orders
        self._port = port
        self._marking = Marking(orders, log)
        members = {"marking": self._marking, "secret": secret}
        self._door = type("Door", (Door,), members)
        self._server: ThreadingHTTPServer | None = None
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        return self._server is not None

    def open(self) -> None:
        with self._lock:
            if self._server is None:
                self._server = ThreadingHTTPServer((HOST, self._port), self._door)
                threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        with self._lock:
            if self._server is not None:
                self._server.shutdown()
                self._server.server_close()
                self._server = None

    def rest(self, seconds: float) -> None:
        """Wait for running requests."""
        self._marking.rest(seconds)


def _body(request: BaseHTTPRequestHandler) -> bytes:
    length = int(request.headers.get("content-length") or 0)
    if not 0 <= length <= BODY_BYTES:
        raise ValueError(length)
    return request.rfile.read(length)


def _work(body: bytes) -> dict[str, Any]:
    work: dict[str, Any] = json.loads(body)
    if urlsplit(work["callback_url"]).scheme not in ("http", "https"):
        raise ValueError(work["callback_url"])
    return work


def _orders(body: bytes) -> dict[str, Any]:
    wanted = {name: ORDERS[name](value) for name, value in json.loads(body or b"{}").items()}
    if not all(value >= 0 for value in wanted.values()):
        raise ValueError(wanted)
    return wanted


def _answer(request: BaseHTTPRequestHandler, status: int, said: dict[str, Any]) -> None:
    body = json.dumps(said).encode()
    request.send_response(status)
    request.send_header("content-type", "application/json")
    request.send_header("content-length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m marking.function", description="It marks.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long a mark takes")
    parser.add_argument("--log", type=Path, help="a file for a line at each beginning and end")
    given = parser.parse_args()
    secret = os.environ.get("MARKING_FUNCTION_SECRET")
    if not secret:
        sys.exit("MARKING_FUNCTION_SECRET is not set: without it every call would be refused.")
    log = Log(given.log)
    log.write("up")
    function = Function(given.port, secret, Orders(given.seconds), log)
    function.open()
    control = type("Control", (Control,), {"function": function})
    with contextlib.suppress(KeyboardInterrupt):
        ThreadingHTTPServer((HOST, given.control), control).serve_forever()


if __name__ == "__main__":
    main()
