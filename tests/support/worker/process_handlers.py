"""Handlers for test_processes.py: each does one thing to its process.

Most of them are only treated as kinds to a child: these tests need no app and no database.
"""

import ctypes
import inspect
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.errors import Invalid
from penstock.models.handlers.exceptions import Cancel, Fail, LeaseLost, Retry, Snooze
from penstock.models.handlers.handler import Handler
from penstock.models.handlers.job import Job
from penstock.models.handlers.parameters import Parameters
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal


class Kind:
    def __init__(self, function: Callable[..., Any]) -> None:
        takes_job = "job" in inspect.signature(function).parameters
        parameters = SimpleNamespace(load=dict, job_parameter="job" if takes_job else None)
        self.handler = SimpleNamespace(function=function, parameters=parameters)


class Declared:
    """A handler as the app declares it, with parameters from its signature."""

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = Parameters.of(function, "declared")
        self.handler = Handler("declared", "main", function, parameters, "process")


@Declared
def declared(day: date, job: Job, pages: int = 1) -> Any:
    return [type(day).__name__, str(day), pages, job.attempt]


@Kind
def unreachable() -> None:
    cause = ProviderError("nobody there", Signal(exception="connect"))
    raise ValueError("the model cannot be reached") from cause


@Kind
def echo(**payload: Any) -> Any:
    return payload


@Kind
def describe(job: Any) -> Any:
    return [str(job.id), job.kind, job.attempt, job.account, job.topic, job.payload, job.key]


@Kind
def report(job: Any) -> Any:
    with job.stage("READ", label="Reading"):
        job.progress(1, 4, partial={"criterion": "style"})
    job.stage("WRITE")
    job.emit("tokens as they come")
    job.charge(units=3)
    job.usage(tokens=812)
    return job.cancelled


@Kind
def stages(job: Any) -> Any:
    with job.stage("OUTER"):
        with job.stage("INNER"):
            assert job.stage_name == "INNER"
        with job.stage("LAST"):
            raise KeyError


@Kind
def two_steps(job: Any) -> Any:
    first = job.step("first", lambda: "made again")
    return [first, job.step("second", lambda a, b: (a + b, job.key), 1, b=2), job.key]


@Kind
def nameless(job: Any) -> Any:
    job.step("", list)


async def _awaited() -> int:
    return 1


@Kind
def odd_words(job: Any, what: str) -> Any:
    match what:
        case "stage":
            job.stage(5)
        case "label":
            job.stage("READ", 5)
        case "step":
            job.step(5, list)
        case "function":
            job.step("c", 5)
        case "async":
            job.step("c", _awaited)
        case _:
            job.step("c", lambda: _awaited())  # noqa: PLW0108  # noticed only when called


@Kind
def bad_progress(job: Any, wrong: str) -> Any:
    try:
        job.progress({1} if wrong == "set" else wrong)
    except (Invalid, LeaseLost, RuntimeError) as error:
        return [type(error).__name__, str(error), getattr(error, "code", None)]
    return None


@Kind
def control(how: str) -> Any:
    match how:
        case "fail":
            raise Fail("no such essay")
        case "retry":
            raise Retry("busy", after=timedelta(seconds=30))
        case "snooze":
            raise Snooze(timedelta(minutes=5))
        case _:
            raise Cancel("withdrawn")


class BadEssay(Fail):
    """A subclass of the app."""


@Kind
def own_fail() -> Any:
    raise BadEssay("too short")


@Kind
def divide() -> Any:
    return 1 / 0


@Kind
def lose(how: str) -> Any:
    if how == "TimeoutError":
        raise TimeoutError("the model is unavailable")
    raise ConnectionResetError("the model is unavailable")


@Kind
def unspeakable() -> Any:
    class Mute(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise ValueError

    raise Mute


@Kind
def returns_a_set() -> Any:
    return {1, 2}


@Kind
def take_memory(mebibytes: int) -> Any:
    held = bytearray(mebibytes << 20)
    return len(held) >> 20


@Kind
def bomb() -> Any:
    held = []
    while True:
        held.append("x" * (1 << 20))


@Kind
def end(how: str) -> Any:
    match how:
        case "exit":
            os._exit(3)
        case "sys.exit":
            sys.exit(4)
        case "segfault":
            ctypes.string_at(0)


@Kind
def spin(job: Any) -> Any:
    job.emit(os.getpid())
    while True:
        pass


@Kind
def sleep(job: Any) -> Any:
    job.emit(os.getpid())
    time.sleep(3_600)


@Kind
def ignore_and_sleep(job: Any) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    job.emit(os.getpid())
    while not job.cancelled:
        time.sleep(3_600)


@Kind
def hold_the_gil(job: Any) -> Any:
    job.emit(os.getpid())
    deque(itertools.repeat(None), maxlen=0)  # one C loop, for ever


@Kind
def clean_up(job: Any, sign: str) -> Any:
    try:
        job.emit(os.getpid())
        time.sleep(3_600)
    finally:
        try:
            job.emit("too late")
        except LeaseLost:
            Path(sign).write_text(f"{job.cancelled} LeaseLost")


@Kind
def leave_politely(job: Any, sign: str) -> Any:
    signal.signal(signal.SIGTERM, lambda *_: None)
    job.emit(os.getpid())
    while not job.cancelled:
        time.sleep(0.01)
    Path(sign).write_text("left")


@Kind
def start_another(job: Any) -> Any:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    job.emit([os.getpid(), other.pid])
    other.wait()


@Kind
def leave_another_behind() -> Any:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid


@Kind
def fork_and_die(job: Any) -> Any:
    pid = os.fork()
    if pid == 0:
        os.setsid()  # out of reach, with the socket still open
        time.sleep(3_600)
    job.emit(pid)
    os._exit(5)


@Kind
def terminate_myself() -> Any:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0)
    return "still here"


@Kind
def surroundings() -> Any:
    fds = Path("/proc/self/fd")
    sockets = [fd.name for fd in fds.iterdir() if _target(fd).startswith("socket:")]
    return {
        "sockets": len(sockets),
        "leads_its_session": os.getsid(0) == os.getpid() == os.getpgid(0),
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "mask": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "stdin": sys.stdin.read(),
    }


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except FileNotFoundError:  # the descriptor that lists the folder
        return ""
