"""The process of one handler call: reads the call, asks the worker, and sends the outcome.

The other side, processes.py, forks it. All data is JSON, in frames that begin with their length;
exceptions are sent as data. There is no pickle, so neither side can be made to run code that it did
not import.
"""

import contextlib
import ctypes
import importlib
import json
import logging
import operator
import os
import queue
import resource
import runpy
import signal
import socket
import struct
import sys
import threading
import types
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

from penstock import errors
from penstock.engine.encoding.encode import encode
from penstock.engine.uploads import PIECE_BYTES
from penstock.failures.classify import Extension
from penstock.models.handlers.exceptions import LeaseLost
from penstock.models.handlers.files import BlockingFile, packed, spooled_here, unpacked
from penstock.models.handlers.step_names import call_plainly, check_label, check_name
from penstock.worker.execution.raised import Frame, known, pack_error

log = logging.getLogger(__name__)

LENGTH = struct.Struct(">I")
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36

_step_name: ContextVar[str | None] = ContextVar("penstock_step", default=None)

# True in the fork server and its children: a script imported there must not start a worker.
serving = False


def read_frame(sock: socket.socket) -> Frame | None:
    """The next frame; None when the other side has closed."""
    head = _read(sock, LENGTH.size)
    body = _read(sock, LENGTH.unpack(head)[0]) if head else None
    return json.loads(body) if body else None


def send_frame(sock: socket.socket, text: str) -> None:
    sock.sendall(pack_frame(text))


def pack_frame(text: str) -> bytes:
    body = text.encode()
    return LENGTH.pack(len(body)) + body


def _read(sock: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        try:
            piece = sock.recv(min(length - len(data), 1 << 20))
        except ConnectionError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)


class Line:
    """The child's end of the connection to the worker.

    Its own thread reads it, so that a cancel, or the end of the worker, is noticed at once.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.stopping = False  # the job was stopped: timed out, cancelled, or the worker leaves
        self._sock = sock
        self._asking = threading.Lock()
        self._replies: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._leaving = False

    def open(self) -> Frame:
        """Read the call to make; from now on a thread reads what the worker sends."""
        call = read_frame(self._sock)
        if call is None:
            os._exit(0)
        signal.signal(signal.SIGTERM, self._leave)
        threading.Thread(target=self._listen, name="penstock-line", daemon=True).start()
        return call

    def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the worker's answer; raise what it raised."""
        text = encode({"ask": method, "args": args, "kwargs": kwargs}, method)
        with self._asking:
            if self.stopping:
                raise LeaseLost
            send_frame(self._sock, text)
            reply = self._replies.get()
        match reply:
            case {"error": packed}:
                raise known(packed) or RuntimeError(f"{packed['class']}: {packed['message']}")
            case {"value": value}:
                return value
            case _:
                raise LeaseLost

    def send(self, text: str) -> None:
        with self._asking, contextlib.suppress(ConnectionError):
            send_frame(self._sock, text)

    def _listen(self) -> None:
        try:
            while (frame := read_frame(self._sock)) is not None:
                if "stopping" in frame:
                    self.stopping = True
                    self._replies.put(None)
                    # To the main thread, so that a sleep or a read there is interrupted. From here
                    # and not from the worker, so that the signal cannot come before `stopping` is
                    # set.
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
                else:
                    self._replies.put(frame)
        finally:
            # The worker is gone, or cannot be reached: kill this process and all that the handler
            # started.
            os.killpg(0, signal.SIGKILL)

    def _leave(self, _number: int, _frame: object) -> None:
        # An exception, so that `finally` and `with` of the handler clean up. A signal alone is not
        # enough to stop: a service manager sends SIGTERM to every process of a service, and the
        # worker, which got it too, lets its jobs finish. Raise only once: a second exception would
        # interrupt the cleaning up.
        if self.stopping and not self._leaving:
            self._leaving = True
            raise SystemExit


def _asking(method: str) -> Callable[..., None]:
    def ask(self: "ProcessJob", *args: Any, **kwargs: Any) -> None:
        self.line.ask(method, *args, **kwargs)

    return ask


class ProcessJob:
    """The job as a handler in its own process sees it: as context.Job in a plain `def`.

    Its reports are sent to the worker, which checks and writes them; steps run here.
    """

    def __init__(self, line: Line, view: dict[str, Any]) -> None:
        vars(self).update({name: value for name, value in view.items() if name != "key"})
        self.id = UUID(view["id"])
        self.stage_name: str | None = None
        self._key: str = view["key"]
        self.line = line
        self._label: str | None = None

    @property
    def key(self) -> str:
        step = _step_name.get()
        return f"{self._key}:{step}" if step else self._key

    @property
    def cancelled(self) -> bool:
        return self.line.stopping

    def stage(self, name: str, label: str | None = None) -> AbstractContextManager[None]:
        check_name(name, "stage")
        check_label(label)
        before, self.stage_name, self._label = (self.stage_name, self._label), name, label
        self.line.ask("stage", name, label)
        return self._leaving_stage(*before)

    @contextlib.contextmanager
    def _leaving_stage(self, name: str | None, label: str | None) -> Iterator[None]:
        yield  # a stage that failed stays, to show where
        self.stage_name, self._label = name, label
        self.line.ask("stage", name or "", label)

    progress, emit, charge, usage = map(_asking, ("progress", "emit", "charge", "usage"))

    def open(self, upload: Any) -> BlockingFile:
        name = str(upload) if isinstance(upload, UUID) else upload
        upload_id, content_type, size = self.line.ask("open", name)

        def piece(n: int) -> bytes | None:
            return unpacked(self.line.ask("read_piece", upload_id, n))

        return BlockingFile(UUID(upload_id), content_type, size, piece)

    def attach(self, data: Any, content_type: str) -> dict[str, str]:
        with spooled_here(data, self.line.ask("most_bytes")) as file:
            file.seek(0)
            while piece := file.read(PIECE_BYTES):
                self.line.ask("add_piece", packed(piece))
        kept: dict[str, str] = self.line.ask("attach", content_type)
        return kept

    def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        check_name(name, "step")
        kept, value = self.line.ask("read_step", name)
        if kept:
            return value
        token = _step_name.set(name)
        try:
            text = encode(call_plainly(function, name, args, kwargs), "step")
        finally:
            _step_name.reset(token)
        self.line.ask("keep_step", name, text)
        return json.loads(text)  # as later attempts get it


def run(sock: socket.socket, main: Frame) -> NoReturn:
    """Make the one call that `sock` brings, send its outcome, and exit."""
    os.setsid()  # no Ctrl-C of the worker's terminal, and one group to kill
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it dies with the worker, not before
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.set_inheritable(sock.fileno(), False)  # noqa: FBT003  # as os has it
    line = Line(sock)
    call = line.open()
    limit: int | None = call["memory_bytes"]
    code = 0
    try:
        _limit_memory(limit)
        text = f'{{"result":{encode(_call(line, call, main), "result")}}}'
    except SystemExit as leaving:  # stopped, or the handler called sys.exit()
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        text = ""
    except BaseException as error:  # noqa: BLE001  # the worker gets whatever a handler raises
        _limit_memory(None)  # the code below needs memory
        packed = pack_error(error, _extensions(call, main))
        packed["memory"] = isinstance(error, MemoryError) and limit is not None
        text = json.dumps({"error": packed})
    if text:
        line.send(text)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)  # no atexit: its functions belong to the fork server


def _call(line: Line, call: Frame, main: Frame) -> Any:
    handler = find(*call["origin"], main=main).handler
    arguments = handler.parameters.load(call["payload"])
    if handler.parameters.job_parameter:
        arguments[handler.parameters.job_parameter] = ProcessJob(line, call["view"])
    return handler.function(**arguments)


def _extensions(call: Frame, main: Frame) -> Sequence[Extension]:
    with contextlib.suppress(Exception):  # the stream itself may have failed
        extensions: Sequence[Extension] = find(*call["origin"], main=main).handler.extensions
        return extensions
    return ()


def find(module: str, path: str, *, main: Frame) -> Any:
    container = _load_main(main) if module == "__main__" else importlib.import_module(module)
    try:
        return operator.attrgetter(path)(container)
    except AttributeError:
        raise errors.Misconfigured(
            f"{module} has no {path} when a new process imports it: a kind with"
            ' isolation="process" has to be at the top level of its module'
        ) from None


def _load_main(main: Frame) -> types.ModuleType:
    """Import the worker's script as a module, without its `if __name__ == "__main__"` block.

    It has the name that multiprocessing uses, so that scripts need only one idiom.
    """
    if "module" in main:  # the fork server has imported it for all its children
        return main["module"]  # type: ignore[no-any-return]
    if main["name"] is not None:
        content = runpy.run_module(main["name"], run_name="__mp_main__", alter_sys=True)
    elif main["path"] is not None:
        content = runpy.run_path(main["path"], run_name="__mp_main__")
    else:
        raise errors.Misconfigured(
            'a kind with isolation="process" was declared in an interactive session, where a new'
            " process cannot find it; put it into a file"
        )
    module = types.ModuleType("__mp_main__")
    vars(module).update(content)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    main["module"] = module
    return module


def _limit_memory(more: int | None) -> None:
    """Let this process allocate `more` bytes more than it has now; None lifts the limit.

    RLIMIT_DATA counts private writable memory, which is what a handler fills. RLIMIT_AS counts
    address space: mapped files and shared libraries, and what allocators, threads and CUDA reserve
    but never touch, so a sound limit would be gigabytes above the memory in use.
    """
    kind, used = resource.RLIMIT_AS, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        kind, used = resource.RLIMIT_DATA, int(fields["VmData"].split()[0]) * 1024
    _, highest = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (highest if more is None else used + more, highest))
    except (OSError, ValueError) as error:
        log.warning("this system does not accept a memory limit (%s)", type(error).__name__)


def exited(leaders: Container[int]) -> Iterator[tuple[int, int]]:
    """Each child that exited, with its exit code; the rest of its process group is killed."""
    with contextlib.suppress(ChildProcessError):
        while True:
            first = -1
            if hasattr(os, "waitid"):  # on macOS from Python 3.13 on
                child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if child is None:
                    return
                # Before it is reaped: afterwards its pid may belong to another process.
                first = child.si_pid
                if first in leaders:
                    kill_group(first)
            pid, status = os.waitpid(first, os.WNOHANG)
            if pid == 0:
                return
            if first == -1 and pid in leaders:
                kill_group(pid)
            yield pid, os.waitstatus_to_exitcode(status)


def kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # also alone: it may not have its group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
