"""Handlers in processes of their own, so that time-outs, cancels and memory limits can end them.

    worker ── control ──> fork server ── fork ──> child: one call, in a session of its own
       ├────── lifeline ──────┘ (exit code comes back)   │
       └────── talk: call, questions and answers, result ┘

The server has imported penstock and the app once, so that a call costs a fork and not an import.
It is single and idle, where the worker has threads, an event loop and database sockets that must
not be forked. Not multiprocessing's own fork server: that one (Python 3.11) looks for modules in
other folders than the worker, runs a script anew for each call, loses exit codes when two threads
wait, and leaves the children alive when the worker is killed while a C call holds their GIL.

When a lifeline ends, its child is killed with its whole group: that is how the worker kills, and
what happens by itself when the worker dies. What a module makes at import (a connection, the state
of a random generator) is the same in every child, as with any fork.
A call costs 4 to 7 ms, the more the app imports the more (median, 2 cores; 2026-11).
"""

import asyncio
import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from multiprocessing.spawn import get_executable
from pathlib import Path
from typing import Any, NoReturn

from penstock.errors import Misconfigured, PenstockError
from penstock.worker.execution import child
from penstock.worker.execution.child import pack_frame, read_frame, send_frame
from penstock.worker.execution.raised import Frame, pack_error, raised

ON_ITS_WAY_SECONDS = 1.0  # for what was said or done to be heard of
CLOSE_SECONDS = 5.0  # for the fork server to kill its children and end

Answer = Callable[[str, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]


class MemoryExceeded(PenstockError):
    """The handler wanted more memory than its limit allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the handler wanted more than the {limit / 2**20:g} MiB of memory it may take;"
            " raise `memory=` of the kind, or give it less at a time"
        )
        self.limit = limit


class ProcessDied(PenstockError):
    """The handler's process ended before the handler returned, or could not be made.

    `code` as in subprocess: the exit code, or minus the signal; None when there is none to know.
    """

    error_class = "worker_lost"

    def __init__(self, code: int | None, limit: int | None = None, refused: str = "") -> None:
        super().__init__(f"the handler's process {_death(code, limit, refused)}")
        self.code = code


def _death(code: int | None, limit: int | None, refused: str) -> str:
    if refused:
        return f"could not be made: {refused}; the system's limit of processes or memory is reached"
    if code is None:
        return "is gone, with the fork server that made it; the next call starts another server"
    if code >= 0:
        return f"ended itself with exit code {code} before the handler returned"
    # A real-time signal has a number only.
    name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
    if code == -signal.SIGKILL:
        return f"was killed by {name}: by a person, or by the system when its memory ran out"
    limited = "" if limit is None else f" or cannot bear the limit of {limit / 2**20:g} MiB"
    return f"was ended by {name}: unless somebody sent it, a library has a fault{limited}"


class Processes:
    """Calls handlers in processes of their own. One event loop at a time; closes with `close`.

    `preload` names the modules of the handlers; with any given, the fork server starts at once and
    imports them while the worker starts, else it starts with the first call.
    """

    def __init__(self, preload: Sequence[str] = ()) -> None:
        if child.serving:
            raise Misconfigured(
                "the script starts a worker when it is imported, as the processes of handlers do;"
                ' put the start under `if __name__ == "__main__":`'
            )
        self._preload = list(preload)
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        if preload:
            self._control, self._server = self._start()

    async def call(  # noqa: PLR0913  # what a call is
        self,
        origin: tuple[str, str],
        payload: dict[str, Any],
        view: dict[str, Any],
        answer: Answer,
        *,
        memory_bytes: int | None,
        grace: float = 2.0,
    ) -> Any:
        """What the handler at `origin` returns; raises what it raises, or how its process ended.

        Cancelled, it tells the child, kills it after `grace` seconds, and ends when it is gone.
        """
        call = {"origin": origin, "payload": payload, "view": view, "memory_bytes": memory_bytes}
        async with _lines() as (talk, (ending, lifeline), far_ends):
            self._fork(far_ends)
            talk[1].write(pack_frame(json.dumps(call)))
            born = asyncio.Event()
            end = asyncio.create_task(_end(ending, born))
            words = asyncio.create_task(_converse(talk, answer))
            try:
                await asyncio.wait({end, words}, return_when=asyncio.FIRST_COMPLETED)
                # Either it said all and ends now, or it ended and its last words are on their way.
                # No longer than that: a process the handler left behind may hold its line open.
                await asyncio.wait({end, words}, timeout=ON_ITS_WAY_SECONDS)
            finally:
                words.cancel()
                if not end.done():
                    talk[1].write(pack_frame('{"stopping":true}'))
                    await _wait({end}, grace if born.is_set() else 0)
                    with contextlib.suppress(OSError, RuntimeError):  # it ended at this moment
                        lifeline.write_eof()  # now it is killed
                    # A server that is still importing has made no child, and will not make one for
                    # a lifeline that has ended: nobody has to wait for it.
                    if not await _wait({end}, None if born.is_set() else ON_ITS_WAY_SECONDS):
                        end.cancel()
                await _wait({end, words}, None)
            last, code = (None if task.cancelled() else task.result() for task in (words, end))
        return _outcome(last, code or {}, memory_bytes)

    def close(self) -> None:
        """End the fork server and, if there are any left, the children. Blocks for a moment."""
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            try:
                self._server.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
        self._control = self._server = None

    def _fork(self, far_ends: Sequence[socket.socket]) -> None:
        """Ask for a child with the far ends of its talk and its lifeline."""
        if self._control is None or self._server is None or self._server.poll() is not None:
            self.close()
            self._control, self._server = self._start()
        try:
            socket.send_fds(self._control, [b"f"], [end.fileno() for end in far_ends])
        except ConnectionError:  # it died since the look
            raise ProcessDied(None) from None
        finally:
            for end in far_ends:
                end.close()

    def _start(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        control, theirs = socket.socketpair()
        # The worker's own path, or what it imports from beside its script would not be found.
        path = [str(entry or Path.cwd()) for entry in sys.path]
        program = (
            f"import sys; sys.path[:] = {path!r};"
            f" from penstock.worker.execution.processes import serve; serve({theirs.fileno()})"
        )
        script = vars(sys.modules["__main__"])
        path_of_script = script.get("__file__") and str(Path(script["__file__"]).absolute())
        main = {"name": getattr(script.get("__spec__"), "name", None), "path": path_of_script}
        start = {"argv": sys.argv, "preload": self._preload, "main": main}
        with theirs:
            server = subprocess.Popen(  # noqa: S603  # this Python, and our own program
                [os.fsdecode(get_executable()), "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        with contextlib.suppress(ConnectionError):  # the first call finds it dead
            send_frame(control, json.dumps(start))
        return control, server


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def _lines() -> AsyncIterator[tuple[Stream, Stream, Sequence[socket.socket]]]:
    """Near ends, as streams, and far ends of talk and lifeline; none is open afterwards."""
    near, far = zip(socket.socketpair(), socket.socketpair(), strict=True)
    streams: list[Stream] = []
    try:
        for sock in near:
            streams.append(await asyncio.open_unix_connection(sock=sock))  # noqa: PERF401
        yield streams[0], streams[1], far
    finally:
        for _, writer in streams:
            writer.transport.abort()
        for sock in (*near[len(streams) :], *far):
            sock.close()


async def _next(reader: asyncio.StreamReader) -> Frame | None:
    try:
        head = await reader.readexactly(child.LENGTH.size)
        body = await reader.readexactly(child.LENGTH.unpack(head)[0])
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return dict(json.loads(body))


async def _converse(talk: Stream, answer: Answer) -> Frame | None:
    """Answer what the child asks; its last words, or None when it ended without."""
    reader, writer = talk
    while (frame := await _next(reader)) is not None and "ask" in frame:
        try:
            value = await answer(frame["ask"], tuple(frame["args"]), frame["kwargs"])
            text = json.dumps({"value": value})
        except Exception as error:  # noqa: BLE001  # for the handler, as if it had called it
            text = json.dumps({"error": pack_error(error)})
        writer.write(pack_frame(text))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
    return frame


async def _end(ending: asyncio.StreamReader, born: asyncio.Event) -> Frame | None:
    """How the child ended; None when the fork server is gone. `born` when there is a child."""
    frame = await _next(ending)
    if frame is not None and "pid" in frame:
        born.set()
        frame = await _next(ending)
    return frame


async def _wait(tasks: set[asyncio.Task[Any]], seconds: float | None) -> bool:
    """Whether they are done in that time. Goes on when cancelled: whoever calls is cancelled."""
    loop = asyncio.get_running_loop()
    until = None if seconds is None else loop.time() + seconds
    while not all(task.done() for task in tasks):
        left = None if until is None else until - loop.time()
        if left is not None and left <= 0:
            return False
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(tasks, timeout=left)
    return True


def _outcome(last: Frame | None, end: Frame, limit: int | None) -> Any:
    match last:
        case {"result": value}:
            return value
        case {"error": {"memory": True}}:
            assert limit is not None  # noqa: S101  # for mypy: the child says so only with a limit
            raise MemoryExceeded(limit)
        case {"error": packed}:
            raise raised(packed)
        case _:
            raise ProcessDied(end.get("code"), limit, end.get("refused", ""))


class Server:
    """Forks a child per request, reports its end, and kills it when its lifeline ends."""

    def __init__(self, control: socket.socket, main: Frame) -> None:
        self._control = control
        self._main = main
        self._lifelines: dict[int, socket.socket] = {}  # by the child's pid
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()

    def run(self) -> None:
        for sock in (self._woken, self._wake):
            sock.settimeout(0)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for sock in (self._control, self._woken):
            self._selector.register(sock, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    self._reap()
                elif key.fileobj is not self._control:
                    self._cut(key.data)
                elif not self._fork():
                    return

    def _fork(self) -> bool:
        """Fork for the next request; False when there will be none."""
        request, fds, _, _ = socket.recv_fds(self._control, 1, 2)
        if not request:
            for pid in self._lifelines:
                child.kill_group(pid)
                os.waitpid(pid, 0)
            return False
        talk, lifeline = (socket.socket(fileno=fd) for fd in fds)
        with talk, contextlib.suppress(ConnectionError):  # the worker's end is closed
            lifeline.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                lifeline.recv(1)  # only an end can come
                lifeline.close()  # cancelled while this server was busy
                return True
            try:
                pid = os.fork()
            except OSError as error:
                send_frame(lifeline, json.dumps({"refused": error.strerror}))
                lifeline.close()
                return True
            if pid == 0:
                self._become_child(talk, lifeline)
            self._lifelines[pid] = lifeline
            self._selector.register(lifeline, selectors.EVENT_READ, data=pid)
            send_frame(lifeline, json.dumps({"pid": pid}))
        return True

    def _become_child(self, talk: socket.socket, lifeline: socket.socket) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            self._selector.close()
            others = self._lifelines.values()
            for sock in (self._control, self._woken, self._wake, lifeline, *others):
                sock.close()
            child.run(talk, self._main)
        finally:
            os._exit(70)  # never back into the server's loop

    def _cut(self, pid: int) -> None:
        """The lifeline of `pid` ended: the worker wants it killed, or is dead."""
        if pid in self._lifelines:  # not reaped a moment ago, else the number may be another's
            self._selector.unregister(self._lifelines[pid])
            child.kill_group(pid)

    def _reap(self) -> None:
        self._woken.recv(4096)  # what is left wakes it once more
        for pid, code in child.ended(self._lifelines):
            lifeline = self._lifelines.pop(pid, None)
            if lifeline is None:
                continue  # an orphan of a handler
            with contextlib.suppress(KeyError):
                self._selector.unregister(lifeline)
            with lifeline, contextlib.suppress(ConnectionError):
                send_frame(lifeline, json.dumps({"code": code}))


def serve(descriptor: int) -> None:
    """The program of the fork server; ends when the worker does."""
    child.serving = True
    control = socket.socket(fileno=descriptor)
    # It ends with the worker and not before, whoever signals the whole service.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    start = read_frame(control) or sys.exit()
    sys.argv = start["argv"]
    for module in start["preload"]:
        # What fails here fails again in the child, which tells the worker.
        with contextlib.suppress(BaseException):
            child.find(module, "__name__", main=start["main"])
    # Orphans of handlers become the server's, which reaps them; a worker that is process 1 of a
    # container would collect zombies.
    child.prctl(child.PR_SET_CHILD_SUBREAPER, 1)
    # Objects made so far stay out of the children's collections, and so on shared pages.
    gc.collect()
    gc.freeze()
    Server(control, start["main"]).run()
