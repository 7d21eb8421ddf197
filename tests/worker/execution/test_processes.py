"""Handlers in their own processes: what they receive, what they report, and that each one exits."""

import asyncio
import contextlib
import json
import linecache
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock.errors import Invalid, Misconfigured
from penstock.models.handlers.exceptions import Cancel, Fail, LeaseLost, Retry, Snooze
from penstock.worker.execution import processes as worker_processes
from penstock.worker.execution.processes import MemoryExceeded, ProcessDied, Processes
from penstock.worker.execution.raised import ChildError
from support.waiting import eventually

HANDLERS = "support.worker.process_handlers"
ID = "0199a0c0-0000-7000-8000-000000000001"
VIEW: dict[str, Any] = {
    "id": ID,
    "kind": "mark",
    "attempt": 2,
    "account": "u1",
    "topic": None,
    "payload": {"a": 1},
    "metadata": {},
    "key": ID,
}
MEBIBYTE = 1 << 20


class Worker:
    """Stands in for the worker: calls, answers, and records what was asked."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.steps: dict[str, Any] = {}

    async def call(self, handler: str, memory: int | None = None, **payload: Any) -> Any:
        return await self.start(handler, memory, **payload)

    def start(
        self, handler: str, memory: int | None = None, grace: float = 5.0, **payload: Any
    ) -> asyncio.Task[Any]:
        return asyncio.create_task(
            self.processes.call(
                (HANDLERS, handler), payload, VIEW, self.answer, memory_bytes=memory, grace=grace
            )
        )

    async def answer(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.asked.append((method, args, kwargs))
        match method, args:
            case "read_step", (name,):
                return name in self.steps, self.steps.get(name)
            case "keep_step", (name, text):
                self.steps[name] = json.loads(text)
            case "progress", ("refused",):
                raise Invalid("progress is odd", code="invalid_progress", field="progress")
            case "progress", ("wrong",):
                raise LeaseLost
            case "progress", ("strange",):
                raise subprocess.SubprocessError("what is this")
        return None

    async def emitted(self) -> Any:
        """The first value that the handler emitted, as soon as it did."""

        async def has() -> bool:
            return any(method == "emit" for method, _, _ in self.asked)

        await eventually(has, "the handler emits")
        return next(args[0] for method, args, _ in self.asked if method == "emit")


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    processes = Processes([HANDLERS])
    yield processes
    processes.close()


@pytest.fixture
def worker(processes: Processes) -> Worker:
    return Worker(processes)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    return any(pid == one and state != "Z" for one, _, state in all_processes())


def gone(*pids: int) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return not any(alive(pid) for pid in pids)

    return check


async def test_the_handler_gets_its_payload_and_returns_its_result(worker: Worker) -> None:
    payload: dict[str, Any] = {"text": "ä😀", "deep": [1, None, {"x": 0.5}]}
    assert await worker.call("echo", **payload) == payload


async def test_a_declared_handler_gets_its_parameters_by_type_and_the_job(worker: Worker) -> None:
    assert await worker.call("declared", day="2026-11-15") == ["date", "2026-11-15", 1, 2]
    with pytest.raises(Invalid) as raised:
        await worker.call("declared", day="2026-11-15", pages="many")
    assert (raised.value.code, raised.value.field) == ("invalid_payload", "pages")


async def test_a_payload_and_result_of_megabytes_fit_through(worker: Worker) -> None:
    text = "x" * (8 * MEBIBYTE)
    assert await worker.call("echo", text=text) == {"text": text}


async def test_the_job_is_as_the_worker_describes_it(worker: Worker) -> None:
    assert await worker.call("describe") == [ID, "mark", 2, "u1", None, {"a": 1}, ID]


async def test_reports_of_the_handler_reach_the_worker_in_order(worker: Worker) -> None:
    assert await worker.call("report") is False
    assert worker.asked == [
        ("stage", ("READ", "Reading"), {}),
        ("progress", (1, 4), {"partial": {"criterion": "style"}}),
        ("stage", ("", None), {}),
        ("stage", ("WRITE", None), {}),
        ("emit", ("tokens as they come",), {}),
        ("charge", (), {"units": 3}),
        ("usage", (), {"tokens": 812}),
    ]


async def test_a_failed_stage_stays_and_an_inner_one_returns_to_the_outer(
    worker: Worker,
) -> None:
    with pytest.raises(ChildError):
        await worker.call("stages")
    assert [args[0] for _, args, _ in worker.asked] == ["OUTER", "INNER", "OUTER", "LAST"]


async def test_a_kept_step_is_not_run_again_and_a_new_one_is_kept(worker: Worker) -> None:
    worker.steps = {"first": "kept"}
    assert await worker.call("two_steps") == ["kept", [3, f"{ID}:second"], ID]
    assert worker.steps == {"first": "kept", "second": [3, f"{ID}:second"]}


async def test_a_stage_or_step_without_a_name_is_refused(worker: Worker) -> None:
    with pytest.raises(Invalid, match="step must have a name"):
        await worker.call("nameless")
    assert worker.asked == []


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("stage", "stage must have a name of 1 to 200 characters, not int"),
        ("label", "label must be a text, not int"),
        ("step", "step must have a name of 1 to 200 characters, not int"),
        ("function", "step c needs a function to run, not int"),
        ("async", "step c has an async function .* give a plain function here"),
        ("lambda", "step c has an async function .* give a plain function here"),
    ],
)
async def test_invalid_arguments_of_a_stage_or_step_are_named(
    worker: Worker, what: str, message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        await worker.call("odd_words", what=what)
    assert worker.steps == {}


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        ("refused", ["Invalid", "progress is odd", "invalid_progress"]),
        ("wrong", ["LeaseLost", "", None]),
        ("strange", ["RuntimeError", "SubprocessError: what is this", None]),
    ],
)
async def test_an_error_in_the_worker_is_raised_in_the_handler(
    worker: Worker, wrong: str, seen: list[str | None]
) -> None:
    assert await worker.call("bad_progress", wrong=wrong) == seen


async def test_a_value_that_is_not_json_is_refused_before_it_is_sent(worker: Worker) -> None:
    name, message, code = await worker.call("bad_progress", wrong="set")
    assert (name, code) == ("Invalid", "invalid_progress")
    assert "set" in message
    assert worker.asked == []


async def test_control_exceptions_arrive_as_what_they_were(worker: Worker) -> None:
    with pytest.raises(Fail, match="no such essay"):
        await worker.call("control", how="fail")
    with pytest.raises(Retry, match="busy") as retry:
        await worker.call("control", how="retry")
    assert retry.value.after == timedelta(seconds=30)
    with pytest.raises(Snooze) as snooze:
        await worker.call("control", how="snooze")
    assert snooze.value.after == timedelta(minutes=5)
    with pytest.raises(Cancel, match="withdrawn"):
        await worker.call("control", how="cancel")


async def test_an_apps_own_kind_of_fail_is_a_fail(worker: Worker) -> None:
    with pytest.raises(Fail, match="too short"):
        await worker.call("own_fail")


async def test_any_other_exception_has_class_message_and_location(worker: Worker) -> None:
    with pytest.raises(ChildError, match="division by zero") as raised:
        await worker.call("divide")
    assert raised.value.class_name == "ZeroDivisionError"
    assert raised.value.where is not None
    path, line = raised.value.where.rsplit(":", 1)
    assert "1 / 0" in linecache.getline(path, int(line))
    assert raised.value.frames[0] == f"{path}:{line} in divide"


@pytest.mark.parametrize("kind", [TimeoutError, ConnectionError])
async def test_a_handlers_own_timeout_or_lost_connection_arrives_as_one(
    worker: Worker, kind: type[OSError]
) -> None:
    with pytest.raises(kind) as raised:
        await worker.call("lose", how=kind.__name__)
    assert isinstance(raised.value, ChildError)
    assert raised.value.message == "the model is unavailable"


async def test_an_exception_without_readable_text_is_reported_by_its_class(worker: Worker) -> None:
    with pytest.raises(ChildError) as raised:
        await worker.call("unspeakable")
    assert (raised.value.class_name, raised.value.message) == ("Mute", "")


async def test_a_result_that_is_not_json_is_invalid(worker: Worker) -> None:
    with pytest.raises(Invalid, match="result is not JSON") as raised:
        await worker.call("returns_a_set")
    assert raised.value.code == "invalid_result"


async def test_a_handler_that_is_not_at_the_top_of_its_module_is_explained(worker: Worker) -> None:
    with pytest.raises(Misconfigured, match="top level of its module"):
        await worker.call("<locals>.inner")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may refuse a memory limit")
async def test_a_memory_limit_is_for_the_handler_and_stops_it_beyond(
    worker: Worker,
) -> None:
    assert await worker.call("take_memory", memory=64 * MEBIBYTE, mebibytes=56) == 56
    with pytest.raises(MemoryExceeded, match="64 MiB") as exceeded:
        await worker.call("take_memory", memory=64 * MEBIBYTE, mebibytes=72)
    assert exceeded.value.limit == 64 * MEBIBYTE
    with pytest.raises(MemoryExceeded):
        await worker.call("bomb", memory=64 * MEBIBYTE)
    assert await worker.call("take_memory", mebibytes=72) == 72


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("exit", 3, "exit code 3"),
        ("sys.exit", 4, "exit code 4"),
        ("segfault", -signal.SIGSEGV, "SIGSEGV"),
    ],
)
async def test_a_process_that_exits_is_distinguished_from_a_result(
    worker: Worker, how: str, code: int, words: str
) -> None:
    with pytest.raises(ProcessDied, match=words) as died:
        await worker.call("end", how=how)
    assert died.value.code == code


async def test_a_process_that_is_killed_from_outside_is_noticed_at_once(worker: Worker) -> None:
    call = worker.start("sleep")
    os.kill(await worker.emitted(), signal.SIGKILL)
    with pytest.raises(ProcessDied, match="SIGKILL") as died:
        await call
    assert died.value.code == -signal.SIGKILL


@pytest.mark.parametrize("handler", ["spin", "sleep"])
async def test_a_cancelled_call_stops_its_process_well_within_the_grace(
    worker: Worker, handler: str
) -> None:
    call = worker.start(handler, grace=60)
    pid = await worker.emitted()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not alive(pid)


@pytest.mark.parametrize("handler", ["ignore_and_sleep", "hold_the_gil"])
async def test_a_handler_that_ignores_the_cancel_is_killed_after_the_grace(
    worker: Worker, handler: str
) -> None:
    call = worker.start(handler, grace=0.2)
    pid = await worker.emitted()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not alive(pid)


async def test_a_timeout_stops_the_process(worker: Worker) -> None:
    call = worker.start("spin", grace=60)
    pid = await worker.emitted()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call, timeout=0.01)
    assert not alive(pid)


async def test_more_cancels_do_not_shorten_the_grace(worker: Worker, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    call = worker.start("clean_up", grace=60, sign=str(sign))
    await worker.emitted()
    while not call.done():
        call.cancel()
        await asyncio.sleep(0)
    assert call.cancelled()
    assert sign.read_text() == "True LeaseLost"


async def test_a_cancel_does_not_wait_for_a_server_that_is_still_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(worker_processes, "CLOSE_SECONDS", 0.1)
    worker = Worker(Processes(["hangs"]))
    call = worker.start("echo", grace=0.1)
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    worker.processes.close()


async def test_a_call_that_is_cancelled_before_the_fork_leaves_no_child(
    worker: Worker,
) -> None:
    for turns in range(6):
        call = worker.start("sleep", grace=0.1)
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await eventually(no_children_of(worker.processes), "the children are gone")


async def test_a_handler_that_is_stopped_may_clean_up(worker: Worker, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    call = worker.start("clean_up", grace=60, sign=str(sign))
    await worker.emitted()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert sign.read_text() == "True LeaseLost"


async def test_a_handler_may_check_cancelled_and_return(worker: Worker, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    call = worker.start("leave_politely", grace=60, sign=str(sign))
    await worker.emitted()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert sign.read_text() == "left"


async def test_processes_of_the_handler_are_killed_with_it(worker: Worker) -> None:
    call = worker.start("start_another", grace=0.2)
    pids = await worker.emitted()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await eventually(gone(*pids), "both processes are gone")


async def test_processes_left_by_the_handler_are_killed_with_the_job(worker: Worker) -> None:
    pid = await worker.call("leave_another_behind")
    await eventually(gone(pid), "the process left behind is gone")


async def test_a_dead_child_is_noticed_though_another_process_has_its_socket(
    worker: Worker,
) -> None:
    with pytest.raises(ProcessDied, match="exit code 5"):
        await worker.call("fork_and_die")
    with contextlib.suppress(ProcessLookupError):  # it may have died with its group
        os.kill(await worker.emitted(), signal.SIGKILL)


async def test_a_signal_to_the_whole_service_does_not_stop_a_job_that_may_drain(
    worker: Worker,
) -> None:
    assert await worker.call("terminate_myself") == "still here"
    os.kill(server_of(worker.processes), signal.SIGTERM)
    os.kill(server_of(worker.processes), signal.SIGINT)
    assert await worker.call("echo", a=1) == {"a": 1}


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_a_child_has_the_workers_streams_and_no_other_file(worker: Worker) -> None:
    ours, theirs = socket.socketpair()  # stands for a connection to the database
    with ours, theirs:
        assert await worker.call("surroundings") == {
            "sockets": 1,
            "leads_its_session": True,
            "interrupt": True,
            "mask": 0,
            "stdin": "",
        }


async def test_twenty_calls_at_once_each_get_their_own_result(worker: Worker) -> None:
    results = await asyncio.gather(*(worker.call("echo", n=n) for n in range(20)))
    assert results == [{"n": n} for n in range(20)]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_two_hundred_calls_leave_no_file_and_no_process_behind(worker: Worker) -> None:
    await worker.call("echo")
    await asyncio.sleep(0)
    server = server_of(worker.processes)
    before = open_files(os.getpid()), open_files(server)
    for _ in range(50):
        await asyncio.gather(
            worker.call("echo"),
            worker.call("report"),
            worker.call("divide"),
            worker.call("end", how="exit"),
            return_exceptions=True,
        )

    async def closed() -> bool:
        return open_files(os.getpid()) <= before[0] and open_files(server) <= before[1]

    await eventually(closed, "all files are closed")
    await eventually(no_children_of(worker.processes), "no child is left, not even a zombie")


@pytest.mark.parametrize(
    "handler",
    [
        "sleep",
        # Nothing in it can run, so only the system can kill it.
        pytest.param(
            "hold_the_gil",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG"),
        ),
    ],
)
async def test_a_killed_fork_server_takes_its_children_along_and_is_replaced(
    worker: Worker, handler: str
) -> None:
    call = worker.start(handler)
    pid = await worker.emitted()
    os.kill(server_of(worker.processes), signal.SIGKILL)
    with pytest.raises(ProcessDied, match="fork server") as died:
        await call
    assert died.value.code is None
    await eventually(gone(pid), "its child is gone")
    assert await worker.call("echo", a=1) == {"a": 1}


async def test_closing_kills_running_handlers() -> None:
    worker = Worker(Processes())
    call = worker.start("hold_the_gil")
    pid = await worker.emitted()
    worker.processes.close()
    with pytest.raises(ProcessDied):
        await call
    assert not alive(pid)


def test_it_works_on_uvloop() -> None:
    async def main() -> None:
        worker = Worker(Processes([HANDLERS]))
        try:
            await asyncio.gather(*(worker.call("report") for _ in range(4)))
            with pytest.raises(ProcessDied):
                await worker.call("end", how="exit")
            worker.asked.clear()
            call = worker.start("hold_the_gil", grace=0.2)
            pid = await worker.emitted()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert not alive(pid)
        finally:
            worker.processes.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


# --- whole programs -------------------------------------------------------------------------------

SCRIPT = """
import asyncio, os, sys, time
from beside import Kind, word
from penstock.worker.execution.processes import Processes

@Kind
def handler(job):
    print("from", __name__, word, sys.argv[1:], flush=True)
    job.emit(os.getpid())
    {body}

VIEW = {{"id": "0199a0c0-0000-7000-8000-000000000001", "key": "k"}}

async def answer(method, args, kwargs):
    print(method, *args, flush=True)

async def main():
    processes = Processes({preload})
    print(await processes.call(("__main__", "handler"), {{}}, VIEW, answer, memory_bytes=None))
    processes.close()

{start}
"""
BESIDE = f"from {HANDLERS} import Kind\nword = 'beside'\n"
GUARDED = 'if __name__ == "__main__":\n    asyncio.run(main())'


@pytest.fixture
async def run(
    tmp_path: Path,
) -> AsyncIterator[Callable[..., Awaitable[asyncio.subprocess.Process]]]:
    """Write the script and start it; when its pipes close, it exits."""
    started: list[asyncio.subprocess.Process] = []
    tests = Path(__file__).parents[2]

    async def run(
        *command: str, body: str = "return 42", preload: str = '["__main__"]', start: str = GUARDED
    ) -> asyncio.subprocess.Process:
        script = SCRIPT.format(body=body, preload=preload, start=start)
        (tmp_path / "script.py").write_text(script)
        (tmp_path / "beside.py").write_text(BESIDE)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tests)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


Run = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.mark.parametrize("command", [("script.py", "x"), ("-m", "script", "x")])
@pytest.mark.parametrize("preload", ['["__main__"]', "()"])
async def test_a_handler_of_the_script_itself_runs(
    run: Run, command: tuple[str, ...], preload: str
) -> None:
    process = await run(*command, preload=preload)
    out, err = await process.communicate()
    first, second, third = out.decode().splitlines()
    assert first == "from __mp_main__ beside ['x']", err
    assert second.startswith("emit ")
    assert third == "42"


async def test_a_script_that_would_start_itself_again_is_explained(run: Run) -> None:
    process = await run("script.py", start="asyncio.run(main())")
    _, err = await process.communicate()
    assert 'start the worker under `if __name__ == "__main__":`' in err.decode()
    assert process.returncode == 1


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(3600)",
        "__import__('collections').deque(__import__('itertools').repeat(0), 0)",
        "__import__('subprocess').run(['sleep', '3600'])",
    ],
    ids=["sleeping", "holding the GIL", "waiting for another"],
)
async def test_no_child_outlives_a_worker_that_is_killed(run: Run, body: str) -> None:
    process = await run("script.py", body=body)
    assert process.stdout is not None
    await process.stdout.readline()
    pid = int((await process.stdout.readline()).split()[1])
    assert alive(pid)
    process.kill()
    await eventually(gone(pid), "the child is gone")
    # Every process that had the worker's stdout is gone, or this would not return.
    async with asyncio.timeout(10):
        await process.stdout.read()


# --- what the system reports ----------------------------------------------------------------------


def server_of(processes: Processes) -> int:
    assert processes._server is not None
    return processes._server.pid


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def no_children_of(processes: Processes) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return all(parent != server_of(processes) for _, parent, _ in all_processes())

    return check


def all_processes() -> Iterator[tuple[int, int, str]]:
    """Number, parent and state of each process, from /proc: a bare Debian has no ps."""
    if sys.platform != "linux":
        listed = subprocess.run(["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, check=True)
        for line in listed.stdout.decode().splitlines():
            pid, parent, state = line.split()
            yield int(pid), int(parent), state[0]
        return
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = stat.read_text().split(" (", 1)
        except (FileNotFoundError, ProcessLookupError):  # it exited after it was listed
            continue
        state, parent = rest.rpartition(") ")[2].split()[:2]
        yield int(pid), int(parent), state
