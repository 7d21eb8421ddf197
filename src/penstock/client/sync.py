"""`app.sync`: the same app for code without an event loop: Django, Flask, Streamlit, scripts.

    app.sync.submit(mark, answer="…")
    app.sync.using(mark, account="u1", conn=connection).submit(answer="…")

There is no second implementation: the engine's own coroutines run in one background loop. Only a
call with the caller's own blocking connection runs in the caller's thread, to which that connection
belongs: its coroutine never waits for a loop, so it completes at the first step.
"""

import asyncio
import atexit
import functools
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, Never, ParamSpec, TypeVar
from uuid import UUID

from penstock.base.suggestions import did_you_mean
from penstock.client.accounts import Accounts
from penstock.client.config.declared import Duration
from penstock.client.inline import start
from penstock.client.submission import Submission
from penstock.client.tickets import Batch, Ticket
from penstock.db.adapters.caller_connection import blocks
from penstock.engine.engine import Engine
from penstock.engine.jobs.info import JobInfo
from penstock.errors import Invalid, Misconfigured, NotFound

if TYPE_CHECKING:
    from penstock.client.app import Penstock
    from penstock.client.kind import Kind

STOP_SECONDS = 15.0
"""How long the loop may take to close its connections."""

P = ParamSpec("P")
R = TypeVar("R")


class LoopThread:
    """An event loop in its own thread, started by the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        _all.add(self)

    def run(self, call: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the loop, from any other thread, and wait for it."""
        if _in_loop():
            # The wait would block the caller's loop and everything that runs in it.
            call.close()
            raise Misconfigured(
                "app.sync was called inside a running event loop, which it would block: await the"
                " async form there (`await kind.submit(...)`, `await ticket.result()`), or call it"
                " in a thread: `await asyncio.to_thread(app.sync.submit, kind, ...)`"
            )
        return self.run_anywhere(call)

    def run_anywhere(self, call: Coroutine[Any, Any, R]) -> R:
        """Do the same, even inside a running loop, which is then blocked."""
        waiting = asyncio.run_coroutine_threadsafe(call, self._started())
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()  # the caller no longer waits, as after Ctrl-C
            raise

    def close(self) -> None:
        """End the loop, which closes its connections. The next call starts another."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            _stop(loop)
            thread.join(STOP_SECONDS)

    @property
    def running(self) -> bool:
        return self._loop is not None

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(loop,), name="penstock-sync", daemon=True
                )
                self._thread.start()
                self._loop = loop
                # An app that is dropped without being closed stops its loop. Otherwise a script
                # that runs again and again in one process would leave one loop per run.
                weakref.finalize(self, _stop, self._loop).atexit = False
                _close_all_at_exit()
            return self._loop

    def forget_parent(self) -> None:
        """Forget the loop in a forked child, which lacks its thread: calls would hang."""
        _the_parents.append(self._loop)
        self._lock = threading.Lock()  # another thread may have held it while we were forked
        self._loop = self._thread = None


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def step(call: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never waits."""
    try:
        call.send(None)
    except StopIteration as done:
        result: R = done.value
        return result
    call.close()
    raise RuntimeError("a call on a blocking connection waited for an event loop")


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    # While the interpreter shuts down, newer Pythons refuse to start the thread that shuts down an
    # executor; by then everything else is closed.
    with suppress(RuntimeError), asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # it is already closed
        loop.call_soon_threadsafe(loop.stop)


_all: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()
_the_parents: list[object] = []  # kept: freeing them would close sockets that the parent uses


@functools.cache
def _close_all_at_exit() -> None:
    # Functions registered later are called earlier. This one is registered by the first loop, after
    # the one that stops the embedded database: connections are closed while it still runs.
    atexit.register(_close_all)


def _close_all() -> None:
    for thread in list(_all):
        thread.close()


def _forget_in_child() -> None:
    for thread in _all:
        thread.forget_parent()


os.register_at_fork(after_in_child=_forget_in_child)


class Sync:
    """The blocking calls of an app. They work in any thread without a running event loop."""

    def __init__(self, app: "Penstock") -> None:
        self._app = app
        self._thread = LoopThread()
        self.accounts = SyncAccounts(app, self._thread)

    def submit(self, kind: "Kind[..., Any] | str", /, *positions: Never, **payload: Any) -> Ticket:
        """Submit one job of a kind, which may be given by its name."""
        return self.using(kind).submit(*positions, **payload)

    def submit_many(
        self, kind: "Kind[..., Any] | str", rows: Iterable[Mapping[str, Any]]
    ) -> list[Ticket]:
        """Submit any number of jobs, all or none, in one transaction; return tickets in order."""
        return self.using(kind).submit_many(rows)

    def using(self, kind: "Kind[..., Any] | str", /, **options: Any) -> "SyncSubmission":
        """Set options for a submit, those of `Kind.using`; `conn` is a blocking connection."""
        if isinstance(kind, str):
            kind = self._find(kind)
        return SyncSubmission(self._app, self._thread, kind.using(**options))

    def status(self, ticket: Ticket | Batch | UUID | str) -> JobInfo | dict[str, Any]:
        """Return the job, or the batch as a dict (`app.batch(id)`)."""
        read: Coroutine[Any, Any, JobInfo | dict[str, Any]] = self._ticket(ticket).status()
        return self._thread.run(read)

    def result(self, ticket: Ticket | Batch | UUID | str, timeout: Duration | None = None) -> Any:
        """Wait until the job has finished; return its result or raise JobFailed or JobCancelled."""
        return self._thread.run(self._ticket(ticket).result(timeout))

    def cancel(self, ticket: Ticket | Batch | UUID | str) -> JobInfo | dict[str, Any]:
        """Cancel a waiting job, or ask a running one to stop; return the job."""
        cancel: Coroutine[Any, Any, JobInfo | dict[str, Any]] = self._ticket(ticket).cancel()
        return self._thread.run(cancel)

    def close(self) -> None:
        """Close connections, thread and embedded database. The next use opens them again."""
        if self._thread.running:
            self._thread.run_anywhere(self._app.close())
            self._thread.close()

    async def close_from_loop(self) -> None:
        if self._thread.running and not self._thread.is_current:
            await asyncio.to_thread(self._thread.close)

    def _ticket(self, ticket: Ticket | Batch | UUID | str) -> Ticket | Batch:
        return ticket if isinstance(ticket, Ticket | Batch) else self._app.ticket(ticket)

    def _find(self, name: str) -> "Kind[..., Any]":
        kind = self._app.kinds.get(name)
        if kind is None:
            known = ", ".join(self._app.kinds) or "none"
            raise NotFound(
                f"there is no job kind {name} in this app; known are {known}."
                f"{did_you_mean(name, self._app.kinds)}",
                code="unknown_kind",
                field="kind",
            )
        return kind


class SyncSubmission:
    """A kind of job with options for its next submits, which block."""

    def __init__(self, app: "Penstock", thread: LoopThread, submission: Submission) -> None:
        if submission.conn is not None:
            refuse_waiting(submission.conn, "kind.using(conn=conn).submit(...)")
        self._app = app
        self._thread = thread
        self._submission = submission

    def submit(self, /, *positions: Never, **payload: Any) -> Ticket:
        self._submission.refuse_positions(positions)
        job = self._submission.new_job(payload)
        ticket = self._run(self._submission.send(self._engine(), job))
        self._start([ticket])
        return ticket

    def submit_many(self, rows: Iterable[Mapping[str, Any]]) -> list[Ticket]:
        batch = self._submission.new_batch(rows)
        if not batch.kinds:
            return []
        tickets = self._run(self._submission.send_many(self._engine(), batch))
        self._start(tickets)
        return tickets

    def _engine(self) -> Engine:
        self._thread.run(self._submission.refuse_private_webhook())
        return self._thread.run(self._app.engine())

    def _run(self, call: Coroutine[Any, Any, R]) -> R:
        # The caller's connection belongs to the caller's thread; calls on it never wait for a loop.
        return self._thread.run(call) if self._submission.conn is None else step(call)

    def _start(self, tickets: list[Ticket]) -> None:
        kind = self._submission.kind
        if kind.inline or kind.driven:
            is_committed = self._submission.conn is None
            self._thread.run(start(kind, tickets, is_committed=is_committed))


def _blocking(
    call: Callable[Concatenate[Accounts, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["SyncAccounts", P], R]:
    """Make a blocking call of an async one."""

    def blocked(self: "SyncAccounts", /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = self.run(call, *args, **kwargs)
        return answer

    blocked.__name__, blocked.__doc__ = call.__name__, call.__doc__
    blocked.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
    return blocked


class SyncAccounts:
    """`app.sync.accounts`: the same calls, blocking. `conn` is a blocking connection."""

    def __init__(self, app: "Penstock", thread: LoopThread) -> None:
        self._app = app
        self._thread = thread

    create = _blocking(Accounts.create)
    show = _blocking(Accounts.show)
    set_plan = _blocking(Accounts.set_plan)
    grant = _blocking(Accounts.grant)
    deduct = _blocking(Accounts.deduct)
    refund = _blocking(Accounts.refund)
    ledger = _blocking(Accounts.ledger)
    list = _blocking(Accounts.list)
    plans = _blocking(Accounts.plans)
    edit_plan = _blocking(Accounts.edit_plan)
    reset_plan = _blocking(Accounts.reset_plan)

    def run(self, call: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **options: Any) -> Any:
        """Run one of the calls above."""
        conn = options.get("conn")
        if conn is None:
            return self._thread.run(call(self._app.accounts, *args, **options))
        refuse_waiting(conn, f"app.accounts.{call.__name__}(...)")
        engine = self._thread.run(self._app.engine())

        async def opened() -> Engine:
            return engine

        # The caller's connection belongs to the caller's thread; calls on it never wait for a loop.
        return step(call(Accounts(opened), *args, **options))


def refuse_waiting(conn: Any, instead: str) -> None:
    """Refuse a connection that is used with `await`: a blocking caller cannot use it."""
    if not blocks(conn):
        raise Invalid(
            f"conn is a connection for an event loop: await {instead} there, or give app.sync a "
            "blocking connection",
            code="invalid_connection",
            field="conn",
        )
