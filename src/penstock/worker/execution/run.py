"""Run one start: its handler, in the loop, in a thread or in a process, to an outcome."""

import asyncio
import contextvars
import functools
import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, assert_never

from penstock.base.error_place import error_place
from penstock.base.safe_read import is_a
from penstock.db.connections.listener import AWAY
from penstock.engine.jobs.attempts import Told, tell
from penstock.engine.jobs.outcomes import Deferred, Error, Failed, Outcome, Released, Succeeded
from penstock.engine.jobs.outcomes import Retry as Retried
from penstock.errors import Invalid, TooLarge, words_of
from penstock.failures.outcome import clean
from penstock.net.provider_errors import ProviderError
from penstock.worker.claiming.slots import Slots
from penstock.worker.execution.attempt import Start
from penstock.worker.execution.frames import frames_of
from penstock.worker.execution.processes import Processes
from penstock.worker.execution.threads import Threads
from penstock.worker.handlers.control import (
    Cancel,
    Fail,
    LeaseLost,
    Retry,
    Snooze,
    outcome_of,
)
from penstock.worker.handlers.files import ProcessFiles
from penstock.worker.handlers.job import Job
from penstock.worker.reporting.progress import AWAY_SECONDS

_log = logging.getLogger("penstock.worker")

# Lost so often in company that it may be what kills workers: it runs as the only one of its sort.
SUSPECT_LOSSES = 2
# How long it waits for its turn here, and how long it rests when that did not come.
SUSPECT_SECONDS = 2.0
_SUSPECT_REST = "5s"
# Longer: another suspect that waits for its turn holds a slot of the loop, and must give up first.
WHOLE_LOOP_SECONDS = 3.0
MOST_RESTS = 20
_SUSPECT_LOOK_SECONDS = 0.01
_OF_WAITING = ("timeout", "stalled", "unavailable", "interrupted")


class Runner:
    """Where handlers that are no coroutines run."""

    def __init__(
        self,
        threads: Threads,
        processes: Processes,
        slots: Slots,
        *,
        certain: bool = False,
        tracebacks: bool = True,
    ) -> None:
        """`certain`: a failure that may have been the provider's is charged at once.

        `tracebacks`: the frames of errors are logged, and kept with the attempt.
        """
        self._certain = certain
        self.tracebacks = tracebacks
        self._slots = slots
        self._threads = threads
        self._processes = processes
        self._turn = asyncio.Lock()

    async def outcome(self, start: Start) -> Outcome:
        """What the handler comes to. Raises nothing but what ends the whole process."""
        if not start.begin():
            return start.outcome_of_stop()
        # Few layers: each coroutine between the loop and the handler costs every job its making.
        run = self._run if start.claimed.losses < SUSPECT_LOSSES else self._run_alone
        try:
            return Succeeded(await run(start))
        except asyncio.CancelledError as stopped:
            silent = stopped.__cause__
            if start.reason != "timeout" or not isinstance(silent, ProviderError):
                return start.outcome_of_stop()
            # The model had sent nothing (providers.stream.paced): its fault, and the circuit's
            # business; a job that takes long is neither.
            error: BaseException = silent
        except LeaseLost:
            start.reason = start.reason or "lost"
            return start.outcome_of_stop()
        except BaseException as raised:  # noqa: BLE001  # a handler that exits ends its job only
            error = raised
            if _follows_from_stop(start, error):
                return start.outcome_of_stop()
        # Not in the block above: a log that cannot be written prints what is being handled there.
        try:
            return self._failure(start, error)
        except BaseException:  # noqa: BLE001  # an exception may do anything when it is looked at
            return Retried(Error("bug", type(error).__name__))

    def _failure(self, start: Start, error: BaseException) -> Outcome:
        outcome = outcome_of(error, start.handler.extensions)
        if self._certain and isinstance(outcome, Retried):
            outcome = replace(outcome, provisional=False)
        if not isinstance(error, Fail | Retry | Snooze | Cancel):
            if _comes_of_waiting(outcome) and start.excused:
                _log.info(
                    "released: its call failed after another job had blocked the event loop",
                    extra={"job": start.claimed.id, "kind": start.claimed.kind},
                )
                return Released()
            frames = frames_of(error) if self.tracebacks and not is_a(error, ProviderError) else ()
            outcome = _with_frames(outcome, frames)
            # What is the provider's fault is told once, when its circuit opens.
            claimed = start.claimed
            free = isinstance(outcome, Deferred) and outcome.error.cls != "config"
            level = logging.INFO if free else logging.WARNING
            _log.log(
                level,
                "a handler failed: %s",
                # Our own sentence says more than a place in our code, and quotes nobody.
                words_of(error) if is_a(error, ProviderError) else error_place(error, frames),
                extra={"job": claimed.id, "kind": claimed.kind, "attempt": claimed.attempt},
            )
        return outcome

    async def _run_alone(self, start: Start) -> Any:
        async with self._suspect_turn(start), self._whole_loop(start):
            return await self._run(start)

    @asynccontextmanager
    async def _whole_loop(self, start: Start) -> AsyncIterator[None]:
        """For a job that has blocked a loop: take all slots of the loop, and so run alone there.

        After MOST_RESTS, two to three minutes, it starts beside the others all the same: a worker
        that is never idle must not keep it for ever.
        """
        mode = start.handler.mode
        if mode != "async" or not await _blocks_loops(start):
            yield
            return
        loop = asyncio.get_running_loop()
        # Its own time runs meanwhile, and must not be over before it has begun.
        until = loop.time() + min(WHOLE_LOOP_SECONDS, start.claimed.timeout_seconds / 2)
        taken, others = 0, self._slots.total(mode) - 1
        try:
            while (taken := taken + self._slots.take([mode], others - taken)) < others:
                if loop.time() >= until:
                    if start.claimed.attempt - start.claimed.failures <= MOST_RESTS:
                        raise Snooze(_SUSPECT_REST)
                    break
                await asyncio.sleep(_SUSPECT_LOOK_SECONDS)
            yield
        finally:
            self._slots.give(mode, taken)

    @asynccontextmanager
    async def _suspect_turn(self, start: Start) -> AsyncIterator[None]:
        """One suspect after the other; behind a long one, the others rest for a while."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SUSPECT_SECONDS
        try:
            async with asyncio.timeout_at(until):
                await self._turn.acquire()
        except TimeoutError:
            raise Snooze(_SUSPECT_REST) from None
        try:
            # The one before has ended here, but the database may not have been told yet.
            while not await _begin_alone(start):
                if loop.time() >= until:
                    raise Snooze(_SUSPECT_REST)
                await asyncio.sleep(_SUSPECT_LOOK_SECONDS)
            yield
        finally:
            self._turn.release()

    async def _run(self, start: Start) -> Any:
        handler = start.handler
        try:
            arguments = handler.parameters.load(start.claimed.payload)
        except Invalid as error:
            # It does not fit the handler as it is now, and never will.
            raise Fail(error.message, public=False) from None
        name = handler.parameters.job_parameter
        if handler.mode == "process":
            return await self._in_process(start)
        if name is not None:
            arguments[name] = Job(start, blocking=handler.mode == "thread")
        match handler.mode:
            case "async":
                return await handler.function(**arguments)
            case "thread":
                context = contextvars.copy_context()
                function = functools.partial(context.run, handler.function, **arguments)
                return await asyncio.wrap_future(start.submit(self._threads, function))
            case _:
                assert_never(handler.mode)

    async def _in_process(self, start: Start) -> Any:
        claimed, handler = start.claimed, start.handler
        assert handler.origin is not None  # noqa: S101  # declared so
        view = {
            "id": str(claimed.id),
            "kind": claimed.kind,
            "attempt": claimed.attempt,
            "account": claimed.account,
            "topic": claimed.topic,
            "payload": claimed.payload,
            "metadata": claimed.metadata or {},
            "key": str(claimed.id),
        }
        return await self._processes.call(
            handler.origin,
            claimed.payload,
            view,
            _Answers(start),
            memory_bytes=handler.memory_bytes,
        )


class _Answers:
    """What a handler in its own process asks and says, done here."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._job = Job(start, blocking=False)
        self._files = ProcessFiles(start)

    async def __call__(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start, desk = self._start, self._start.desk
        match method:
            case "read_step":
                await desk.read_steps(start)
                return [args[0] in start.steps, start.steps.get(args[0])]
            case "keep_step":
                name, text = args
                await self._job.keep(name, text)
                return None
            case "cancelled":
                return start.cancelled
            case "stage":
                self._job.say_stage(*args, **kwargs)
                return None
            case "open" | "read_piece" | "most_bytes" | "add_piece" | "attach":
                return await self._files(method, *args)
            case "emit" | "progress" | "charge" | "usage":
                return await getattr(self._job, method)(*args, **kwargs)
            case _:
                raise ValueError(method)


async def _begin_alone(start: Start) -> bool:
    claimed = start.claimed
    while True:
        try:
            return await start.desk.engine.workers.begin_alone(
                start.worker, claimed.id, claimed.attempt
            )
        except AWAY:
            await asyncio.sleep(AWAY_SECONDS)


async def _blocks_loops(start: Start) -> bool:
    while True:
        try:
            return await start.desk.engine.workers.blocks_loops(start.claimed.id)
        except AWAY:
            await asyncio.sleep(AWAY_SECONDS)


def _with_frames(outcome: Outcome, frames: tuple[str, ...]) -> Outcome:
    if frames and isinstance(outcome, Failed | Retried | Deferred):
        return replace(outcome, error=replace(outcome.error, frames=frames))
    return outcome


def _comes_of_waiting(outcome: Outcome) -> bool:
    """Whether a call has failed as one does that was not looked after in time."""
    return isinstance(outcome, Retried | Deferred) and outcome.error.cls in _OF_WAITING


def _follows_from_stop(start: Start, error: BaseException) -> bool:
    """Whether a handler raised this because it was stopped: what it trips over then is no failure.

    Its own word about a time-out or a cancel counts; not about an end that is the worker's affair.
    """
    if start.reason in ("lost", "stop"):
        return True
    return start.reason is not None and not isinstance(error, Fail | Retry | Snooze | Cancel)


def told(start: Start, outcome: Outcome) -> Told:
    """The end of a start as a row; a result that cannot be kept is the handler's bug."""
    try:
        return tell(start.claimed, outcome, usage=start.usage, units=start.units)
    except (Invalid, TooLarge) as error:
        said = clean(error.message)
    except BaseException as error:  # noqa: BLE001  # a result may do anything when it is looked at
        said = f"its result cannot be read: {type(error).__name__}"
    code = inspect.unwrap(start.handler.function).__code__
    _log.warning(
        "the result of a job cannot be kept, what its handler at %s:%d returned: see the job's"
        " error",
        code.co_filename,
        code.co_firstlineno,
        extra={"job": start.claimed.id, "kind": start.claimed.kind},
    )
    return tell(start.claimed, Failed(Error("bug", said, retryable=False)), units=start.units)
