"""The job object that a handler receives.

One class serves both kinds of handler. An `async def` awaits the calls; in a plain `def`, which
runs in a thread, the same calls finish before they return.
"""

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Generator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    suppress,
)
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import Any
from uuid import UUID

from penstock.engine.encoding.encode import CREDITS_MAX, encode
from penstock.errors import Invalid, TooLarge
from penstock.models.handlers.exceptions import LeaseLost
from penstock.models.handlers.files import (
    BlockingFile,
    File,
    find_file,
    keep_file,
    read_piece,
    spooled,
    spooled_here,
)
from penstock.models.handlers.protocols import JobContext
from penstock.models.handlers.step_names import (
    call_plainly,
    check_function,
    check_label,
    check_name,
    invalid,
)

# The size limit of a payload.
TEXT_MAX = 1_048_576
# After this many characters an emitting thread waits until the loop has processed them.
_CHARACTERS_AHEAD = 65_536

_step_name: ContextVar[str | None] = ContextVar("penstock_step", default=None)


class Done:
    """An awaitable that is complete."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


DONE = Done()


class Job:
    """The job of a handler: its data, and the calls that report about it."""

    __slots__ = ("_blocking", "_context", "_emitted", "_stage")

    def __init__(self, context: JobContext, *, blocking: bool) -> None:
        """The worker creates it. `blocking`: for a plain `def`, which runs in a thread."""
        self._context = context
        self._blocking = blocking
        self._stage: tuple[str, str | None] = ("", None)
        self._emitted = 0

    @property
    def id(self) -> UUID:
        return self._context.claimed.id

    @property
    def kind(self) -> str:
        return self._context.claimed.kind

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._context.claimed.attempt

    @property
    def account(self) -> str | None:
        return self._context.claimed.account

    @property
    def topic(self) -> str | None:
        return self._context.claimed.topic

    @property
    def payload(self) -> dict[str, Any]:
        return self._context.claimed.payload

    @property
    def metadata(self) -> dict[str, Any]:
        return self._context.claimed.metadata or {}

    @property
    def stage_name(self) -> str | None:
        return self._stage[0] or None

    @property
    def key(self) -> str:
        """An idempotency key for providers: the same in every attempt, and one per step."""
        step = _step_name.get()
        return f"{self.id}:{step}" if step else str(self.id)

    @property
    def cancelled(self) -> bool:
        """Whether the job is to be cancelled: return, or raise Cancel, within the grace period."""
        return self._context.cancelled

    def stage(self, name: str, label: str | None = None) -> "Stage":
        """Report the current stage; as a context manager, for the duration of the block.

        `async with job.stage("TIER1", label="Tier 1 scanning"): …`, or `with` in a plain `def`.
        """
        check_name(name, "stage")
        check_label(label)
        before = self._stage
        self.say_stage(name, label)
        return Stage(self, before)

    def say_stage(self, name: str, label: str | None) -> None:
        """Report a stage without checks of its form; "" for none."""
        # Encoded here: text that Postgres refuses would fail the reports of other attempts, too.
        encode([name, label], "stage")
        self._stage = (name, label)
        self._report(self._context.progress.stage, self._context, name, label)

    def leave_stage(self, before: tuple[str, str | None]) -> None:
        """Return to the enclosing stage. Called by Stage."""
        self.say_stage(*before)

    def progress(self, done: float, total: float | None = None, partial: Any = None) -> Done:
        """Report how much is done, of how much in total, and the partial result."""
        _check_numbers({"done": done} if total is None else {"done": done, "total": total})
        text = _bounded(
            encode({"done": done, "total": total, "partial": partial}, "progress"), "progress"
        )
        self._report(self._context.progress.progress, self._context, text)
        return DONE

    def emit(self, data: Any) -> Any:
        """Send a piece of the live stream: a text or any JSON value."""
        encoded = _bounded(encode(data, "chunk"), "chunk")
        text = data if isinstance(data, str) else None
        self._report(self._context.progress.chunk, self._context, text, encoded)
        if self._blocking:
            # A thread can emit faster than the loop sends: it waits for the loop now and then.
            self._emitted += len(encoded)
            if self._emitted > _CHARACTERS_AHEAD:
                self._context.wait_for(self._context.progress.room(self._context))
                self._emitted = 0
            return DONE
        if not self._context.progress.is_full(self._context):
            return DONE
        return self._context.progress.room(self._context)

    def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `function` once for all attempts: its result is stored and reused by later attempts.

        Await it in an `async def` handler. The function must return a JSON value; every attempt,
        also this one, receives the value after a round trip through JSON.
        """
        check_name(name, "step")
        check_function(function, name)
        if self._blocking:
            return self._step_blocking(name, function, args, kwargs)
        return self._step(name, function, args, kwargs)

    async def _step(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        context = self._context
        await context.progress.read_steps(context)
        if name not in context.steps:
            with _key_of(name):
                if inspect.iscoroutinefunction(function):
                    value = await function(*args, **kwargs)
                else:
                    call = functools.partial(copy_context().run, function, *args, **kwargs)
                    value = await asyncio.wrap_future(context.run_step(call))
                    if inspect.isawaitable(value):
                        value = await value
            await self.keep(name, encode(value, "step"))
        return context.steps[name]

    def _step_blocking(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        context = self._context
        context.wait_for(context.progress.read_steps(context))
        if name not in context.steps:
            with _key_of(name):
                value = call_plainly(function, name, args, kwargs)
            context.wait_for(self.keep(name, encode(value, "step")))
        return context.steps[name]

    async def keep(self, name: str, text: str) -> None:
        """Store the result of a step, as JSON; return when it is committed.

        It does not return the value, because the loop's debug mode prints the result of a task.
        """
        context = self._context
        await context.progress.keep_step(context, name, _bounded(text, "step"))
        context.steps.setdefault(name, json.loads(text))

    def charge(self, *, units: int) -> Done:
        """Report how many units were delivered so far: that many of the reserved ones are charged.

        The number is stored while the job runs: if the job is cancelled, delivered units are
        charged.
        """
        if type(units) is not int or not 0 <= units <= CREDITS_MAX:
            raise invalid("units", f"must be a whole number from 0 to {CREDITS_MAX}")
        self._report(self._context.progress.units, self._context, units)
        self._context.units = units
        return DONE

    def usage(self, **counts: float) -> Done:
        """Report usage as numbers by name (`tokens=812`); the numbers of one name are added."""
        _check_numbers(counts)
        encode(counts, "usage")
        used = self._context.usage or {}
        self._context.usage = used | {name: used.get(name, 0) + n for name, n in counts.items()}
        return DONE

    def hand_over(self) -> Any:
        """Dispatch the job: return what an outside function needs for its callback.

        Await it in an `async def` handler, before you call the function. Afterwards the handler can
        report nothing about the job. If the handler then fails, the attempt fails.
        """
        going = self._context.hand_over()
        return self._context.wait_for(going) if self._blocking else going

    def open(self, upload: Any) -> Any:
        """Open a file: `file = await job.open(picture)`, then `await file.read()`.

        `upload` is `{"upload": id}`, as in the payload, or the id of an upload. The upload must
        belong to the job's account. `file` has `content_type`, `size`, `read()` and `chunks()`.
        """
        if self._blocking:
            file = self._context.wait_for(find_file(self._context, upload))

            def piece(n: int) -> Any:
                return self._context.wait_for(read_piece(self._context, file.id, n))

            return BlockingFile(file.id, file.content_type, file.size, piece)
        return self._open(upload)

    async def _open(self, upload: Any) -> File:
        file = await find_file(self._context, upload)
        piece = functools.partial(read_piece, self._context, file.id)
        return File(file.id, file.content_type, file.size, piece)

    def attach(self, data: Any, content_type: str) -> Any:
        """Store a file that the job has created, and return `{"upload": id}` for its result.

        `data`: bytes, a Path, a file, or an iterator (also an async one) of bytes. The file belongs
        to the job's account.
        """
        if self._blocking:
            uploads = self._context.uploads
            with spooled_here(data, self._context.wait_for(uploads.most_bytes())) as file:
                return self._context.wait_for(keep_file(self._context, file, content_type))
        return self._attach(data, content_type)

    async def _attach(self, data: Any, content_type: str) -> dict[str, str]:
        with await spooled(data, self._context.uploads) as file:
            return await keep_file(self._context, file, content_type)

    def _report(self, call: Callable[..., None], *args: Any) -> None:
        if self._context.returned:
            raise LeaseLost
        if self._context.token is not None:
            raise Invalid(
                "the job was dispatched: only its callbacks can report about it", code="handed"
            )
        if self._blocking:
            # A lambda: the loop's debug mode prints the arguments of a slow call.
            self._context.in_loop(lambda: _quietly(call, *args))
        else:
            call(*args)


@contextmanager
def _key_of(step: str) -> Iterator[None]:
    """Let `job.key` include this step inside the block."""
    token = _step_name.set(step)
    try:
        yield
    finally:
        _step_name.reset(token)


class Stage(AbstractContextManager["Stage"], AbstractAsyncContextManager["Stage"]):
    """A stage in progress; leaving the block returns to the enclosing stage."""

    __slots__ = ("_before", "_job")

    def __init__(self, job: Job, before: tuple[str, str | None]) -> None:
        self._job = job
        self._before = before

    def __await__(self) -> Generator[None, None, None]:
        return DONE.__await__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After a failure the stage stays, to show where the job failed.
        if kind is None:
            self._job.leave_stage(self._before)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)


def _quietly(call: Callable[..., None], *args: Any) -> None:
    """Call in the loop, for a thread whose attempt may have been settled in the meantime."""
    with suppress(LeaseLost):
        call(*args)


def _bounded(text: str, field: str) -> str:
    """Return a JSON text unless it is longer than a payload may be."""
    if len(text) > TEXT_MAX:
        raise TooLarge(
            f"{field} has {len(text)} characters as JSON; at most {TEXT_MAX} are allowed",
            code=f"{field}_too_large",
            field=field,
        )
    return text


def _check_numbers(values: dict[str, float]) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid(name, f"must be a number, not {type(value).__name__}")
