"""The job as its handler sees it.

One class for both kinds of handler. In an `async def` the calls are awaited; in a plain `def`,
which runs in a thread, the same calls do their work before they return.
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

# As much as a payload may have.
TEXT_MAX = 1_048_576
# After so much a thread that emits waits until the loop has seen it.
_CHARACTERS_AHEAD = 65_536

_step_name: ContextVar[str | None] = ContextVar("penstock_step", default=None)


class Done:
    """An awaitable that is done already."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


DONE = Done()


class Job:
    """What a handler may know of its job, and say about it."""

    __slots__ = ("_blocking", "_context", "_emitted", "_stage")

    def __init__(self, context: JobContext, *, blocking: bool) -> None:
        """Made by the worker. `blocking`: for a handler that awaits nothing, in its thread."""
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
        """A stable key for a provider's idempotency: the same in every attempt, one per step."""
        step = _step_name.get()
        return f"{self.id}:{step}" if step else str(self.id)

    @property
    def cancelled(self) -> bool:
        """Whether the job is asked to end: return, or raise Cancel, while there is time."""
        return self._context.cancelled

    def stage(self, name: str, label: str | None = None) -> "Stage":
        """Say what is being done now; as a context manager, until its end.

        `async with job.stage("TIER1", label="Tier 1 scanning"): …`, or `with` in a plain `def`.
        """
        check_name(name, "stage")
        check_label(label)
        before = self._stage
        self.say_stage(name, label)
        return Stage(self, before)

    def say_stage(self, name: str, label: str | None) -> None:
        """Say it as it stands; "" for none."""
        # Checked here: what Postgres refuses would fail the reports of other attempts, too.
        encode([name, label], "stage")
        self._stage = (name, label)
        self._report(self._context.progress.stage, self._context, name, label)

    def leave_stage(self, before: tuple[str, str | None]) -> None:
        """Go back to the stage around this one. Called by Stage."""
        self.say_stage(*before)

    def progress(self, done: float, total: float | None = None, partial: Any = None) -> Done:
        """Say how much is done, of how much, and what there is of the result so far."""
        _check_numbers({"done": done} if total is None else {"done": done, "total": total})
        text = _bounded(
            encode({"done": done, "total": total, "partial": partial}, "progress"), "progress"
        )
        self._report(self._context.progress.progress, self._context, text)
        return DONE

    def emit(self, data: Any) -> Any:
        """Send a piece of the live stream: a text, or any JSON value."""
        encoded = _bounded(encode(data, "chunk"), "chunk")
        text = data if isinstance(data, str) else None
        self._report(self._context.progress.chunk, self._context, text, encoded)
        if self._blocking:
            # A thread is ahead of the loop: now and then it waits until the loop has seen it all.
            self._emitted += len(encoded)
            if self._emitted > _CHARACTERS_AHEAD:
                self._context.wait_for(self._context.progress.room(self._context))
                self._emitted = 0
            return DONE
        if not self._context.progress.is_full(self._context):
            return DONE
        return self._context.progress.room(self._context)

    def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `function` once for all attempts: its result is kept, and later attempts get it.

        To be awaited in an `async def` handler. What it returns has to be JSON; it comes back as
        JSON, in this attempt as in later ones.
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
        """Keep what a step came to, as JSON; returns when it is safe.

        Without the value: the loop's debug mode prints what a task came to.
        """
        context = self._context
        await context.progress.keep_step(context, name, _bounded(text, "step"))
        context.steps.setdefault(name, json.loads(text))

    def charge(self, *, units: int) -> Done:
        """Say how many units were delivered so far: of what was reserved, that many are charged.

        It is kept while the job runs: should it be cancelled, what it delivered counts.
        """
        if type(units) is not int or not 0 <= units <= CREDITS_MAX:
            raise invalid("units", f"must be a whole number from 0 to {CREDITS_MAX}")
        self._report(self._context.progress.units, self._context, units)
        self._context.units = units
        return DONE

    def usage(self, **counts: float) -> Done:
        """Say what was used, as numbers by name (`tokens=812`); repeated names add up."""
        _check_numbers(counts)
        encode(counts, "usage")
        used = self._context.usage or {}
        self._context.usage = used | {name: used.get(name, 0) + n for name, n in counts.items()}
        return DONE

    def hand_over(self) -> Any:
        """Let the job go on outside: what to give to the function that will call back.

        To be awaited in an `async def` handler, before the function is called; nothing can be said
        about the job afterwards. If the handler fails then, the attempt has failed.
        """
        going = self._context.hand_over()
        return self._context.wait_for(going) if self._blocking else going

    def open(self, upload: Any) -> Any:
        """Open a file: `file = await job.open(picture)`, then `await file.read()`.

        `upload` is `{"upload": id}` as it stands in the payload, or such an id; of the job's own
        account. `file` has `content_type`, `size`, `read()` and `chunks()`.
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
        """Keep a file that the job has made: `{"upload": id}`, for its result.

        `data`: bytes, a Path, a file, or an iterator (also an async one) of bytes. It belongs to
        the job's account.
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
            raise Invalid("the job was handed over: its callbacks say how it goes", code="handed")
        if self._blocking:
            # Not as arguments: the loop's debug mode prints those of a slow call.
            self._context.in_loop(lambda: _quietly(call, *args))
        else:
            call(*args)


@contextmanager
def _key_of(step: str) -> Iterator[None]:
    """Inside, `job.key` names this step."""
    token = _step_name.set(step)
    try:
        yield
    finally:
        _step_name.reset(token)


class Stage(AbstractContextManager["Stage"], AbstractAsyncContextManager["Stage"]):
    """A stage that was begun; leaving it goes back to the one around it."""

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
        # A stage that failed stays: it says where.
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
    """In the loop, for a thread whose attempt may have ended meanwhile."""
    with suppress(LeaseLost):
        call(*args)


def _bounded(text: str, field: str) -> str:
    """A JSON text that is no longer than a payload may be."""
    if len(text) > TEXT_MAX:
        raise TooLarge(
            f"{field} has {len(text)} characters as JSON; it may have {TEXT_MAX}",
            code=f"{field}_too_large",
            field=field,
        )
    return text


def _check_numbers(values: dict[str, float]) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid(name, f"must be a number, not {type(value).__name__}")
