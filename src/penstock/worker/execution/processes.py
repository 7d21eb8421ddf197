"""Runs handlers in their own processes, so that time-outs, cancels and memory limits can end them.

    worker ── control ──> fork server ── fork ──> child: one call, in its own session
       ├────── lifeline ──────┘ (exit code comes back)   │
       └────── talk: call, questions and answers, result ┘

The server has imported penstock and the app once, so that a call costs a fork and not an import.
It is single-threaded and idle; the worker has threads, an event loop and database sockets, which
must not be forked. multiprocessing's own fork server (Python 3.11) is not used: it searches modules
in other folders than the worker, runs a script again for each call, loses exit codes when two
threads wait, and leaves the children alive when the worker is killed while a C call holds their
GIL.

When a lifeline ends, the server kills its child with the whole process group. The worker kills a
child in this way, and it also happens when the worker dies. Whatever a module makes at import (a
connection, the state of a random generator) is the same in every child, as with any fork.
A call costs 4 to 7 ms, more if the app imports more (median, 2 cores; 2026-11).
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

ON_ITS_WAY_SECONDS = 1.0  # for frames and exit codes to arrive
CLOSE_SECONDS = 5.0  # for the fork server to kill its children and exit

Answer = Callable[[str, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]


class MemoryExceeded(PenstockError):
    """The handler needed more memory than its limit allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the handler needed more than the {limit / 2**20:g} MiB of memory it may use;"
            " raise `memory=` of the kind, or process less at a time"
        )
        self.limit = limit


class ProcessDied(PenstockError):
    """The handler's process exited before the handler returned, or could not be made.

    `code` as in subprocess: the exit code, or minus the signal; None when it is unknown.
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
        return f"exited with exit code {code} before the handler returned"
    # A real-time signal has only a number.
    name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
    if code == -signal.SIGKILL:
        return f"was killed by {name}: by a person, or by the system when its memory ran out"
    limited = "" if limit is None else f" or cannot bear the limit of {limit / 2**20:g} MiB"
    return f"was ended by {name}: unless a person sent it, a library has a fault{limited}"


class Processes:
    """Calls handlers in their own processes. Used by one event loop; ends with `close`.

    `preload` names the modules of the handlers. If there are any, the fork server starts at once
    and imports them while the worker starts; otherwise it starts with the first call.
    """

    def __init__(self, preload: Sequence[str] = ()) -> None:
        if child.serving:
            raise Misconfigured(
                "the script starts a worker when it is imported, as the processes of handlers do;"
                ' start the worker under `if __name__ == "__main__":`'
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
        """Return what the handler at `origin` returns; raise its error, or how the process died.

        When cancelled, it asks the child to stop, kills it after `grace` seconds, and returns when
        the child is gone.
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
                # Either the child has sent its result and exits now, or it exited and its last
                # frame is under way. Wait no longer than that: a process that the handler left
                # running may keep the connection open.
                await asyncio.wait({end, words}, timeout=ON_ITS_WAY_SECONDS)
            finally:
                words.cancel()
                if not end.done():
                    talk[1].write(pack_frame('{"stopping":true}'))
                    await _wait({end}, grace if born.is_set() else 0)
                    with contextlib.suppress(OSError, RuntimeError):  # it has just exited
                        lifeline.write_eof()  # the server kills the child now
                    # A server that is still importing has made no child, and will make none for a
                    # closed lifeline: do not wait for it.
                    if not await _wait({end}, None if born.is_set() else ON_ITS_WAY_SECONDS):
                        end.cancel()
                await _wait({end, words}, None)
            last, code = (None if task.cancelled() else task.result() for task in (words, end))
        return _outcome(last, code or {}, memory_bytes)

    def close(self) -> None:
        """End the fork server and all children that are left. Blocks for a moment."""
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
        """Ask the server for a child, and send it the far ends of connection and lifeline."""
        if self._control is None or self._server is None or self._server.poll() is not None:
            self.close()
            self._control, self._server = self._start()
        try:
            socket.send_fds(self._control, [b"f"], [end.fileno() for end in far_ends])
        except ConnectionError:  # it died after the check
            raise ProcessDied(None) from None
        finally:
            for end in far_ends:
                end.close()

    def _start(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        control, theirs = socket.socketpair()
        # The worker's own path; otherwise modules beside its script would not be found.
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
        with contextlib.suppress(ConnectionError):  # the first call notices that it is dead
            send_frame(control, json.dumps(start))
        return control, server


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def _lines() -> AsyncIterator[tuple[Stream, Stream, Sequence[socket.socket]]]:
    """Near ends, as streams, and far ends of connection and lifeline; all are closed afterwards."""
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
    """Answer the child's questions; its last frame, or None when it exited without one."""
    reader, writer = talk
    while (frame := await _next(reader)) is not None and "ask" in frame:
        try:
            value = await answer(frame["ask"], tuple(frame["args"]), frame["kwargs"])
            text = json.dumps({"value": value})
        except Exception as error:  # noqa: BLE001  # raised again in the handler
            text = json.dumps({"error": pack_error(error)})
        writer.write(pack_frame(text))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
    return frame


async def _end(ending: asyncio.StreamReader, born: asyncio.Event) -> Frame | None:
    """The child's exit; None when the fork server is gone. Sets `born` when there is a child."""
    frame = await _next(ending)
    if frame is not None and "pid" in frame:
        born.set()
        frame = await _next(ending)
    return frame


async def _wait(tasks: set[asyncio.Task[Any]], seconds: float | None) -> bool:
    """Whether the tasks finish in time. Waits on when cancelled: its caller is being cancelled."""
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
            assert limit is not None  # noqa: S101  # for mypy: sent only with a limit
            raise MemoryExceeded(limit)
        case {"error": packed}:
            raise raised(packed)
        case _:
            raise ProcessDied(end.get("code"), limit, end.get("refused", ""))


class Server:
    """Forks a child for each request, reports its exit, and kills it when its lifeline ends."""

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
        """Fork for the next request; False when no more will come."""
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
                lifeline.recv(1)  # only end-of-file can come
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
        """Kill the child `pid`, whose lifeline ended: the worker wants it killed, or is dead."""
        if pid in self._lifelines:  # not reaped: the pid may belong to another process
            self._selector.unregister(self._lifelines[pid])
            child.kill_group(pid)

    def _reap(self) -> None:
        self._woken.recv(4096)  # the rest wakes it once more
        for pid, code in child.exited(self._lifelines):
            lifeline = self._lifelines.pop(pid, None)
            if lifeline is None:
                continue  # a process that a handler left running
            with contextlib.suppress(KeyError):
                self._selector.unregister(lifeline)
            with lifeline, contextlib.suppress(ConnectionError):
                send_frame(lifeline, json.dumps({"code": code}))


def serve(descriptor: int) -> None:
    """The program of the fork server; it exits when the worker does."""
    child.serving = True
    control = socket.socket(fileno=descriptor)
    # It exits with the worker and not before, even if the whole service gets a signal.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    start = read_frame(control) or sys.exit()
    sys.argv = start["argv"]
    for module in start["preload"]:
        # An import that fails here fails again in the child, which reports it to the worker.
        with contextlib.suppress(BaseException):
            child.find(module, "__name__", main=start["main"])
    # Processes that handlers leave running become children of the server, which reaps them. A
    # worker that is process 1 of a container would collect zombies.
    child.prctl(child.PR_SET_CHILD_SUBREAPER, 1)
    # Existing objects stay out of the children's collections, and so stay on shared pages.
    gc.collect()
    gc.freeze()
    Server(control, start["main"]).run()
