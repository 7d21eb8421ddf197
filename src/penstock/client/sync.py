"""`app.sync`: the same app for code without an event loop: Django, Flask, Streamlit, scripts.

app.sync.submit(mark, answer="…")
app.sync.using(mark, account="u1", conn=connection).submit(answer="…")
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Never
from uuid import UUID

from penstock.base.suggestions import did_you_mean
from penstock.client.accounts import SyncAccounts, refuse_waiting
from penstock.client.batch import Batch
from penstock.client.blocking import LoopThread, step
from penstock.client.config.options import Duration
from penstock.client.drive import drive_soon
from penstock.client.inline import run_here, run_when_committed
from penstock.client.submission import Submission
from penstock.client.ticket import Ticket
from penstock.engine.jobs.info import JobInfo
from penstock.errors import NotFound

if TYPE_CHECKING:
    from penstock.client.app import Penstock
    from penstock.client.kind import Kind


class Sync:
    """Each call blocks until it is done, and may come from any thread without a running loop."""

    def __init__(self, app: "Penstock") -> None:
        self._app = app
        self._thread = LoopThread()
        self.accounts = SyncAccounts(app, self._thread)

    def submit(self, kind: "Kind[..., Any] | str", /, *positions: Never, **payload: Any) -> Ticket:
        """Accept one job of a kind, or of the kind of that name."""
        return self.using(kind).submit(*positions, **payload)

    def submit_many(
        self, kind: "Kind[..., Any] | str", rows: Iterable[Mapping[str, Any]]
    ) -> list[Ticket]:
        """Accept any number of jobs, all or none, in one transaction; tickets in order."""
        return self.using(kind).submit_many(rows)

    def using(self, kind: "Kind[..., Any] | str", /, **options: Any) -> "SyncSubmission":
        """Options for a submit, as `Kind.using` takes them; `conn` is a blocking connection."""
        if isinstance(kind, str):
            kind = self._find(kind)
        return SyncSubmission(self._app, self._thread, kind.using(**options))

    def status(self, ticket: Ticket | Batch | UUID | str) -> JobInfo | dict[str, Any]:
        """The job, or the batch as a dict (`app.batch(id)`), as every reader sees it."""
        found: JobInfo | dict[str, Any] = self._thread.run(self._ticket(ticket).status())
        return found

    def result(self, ticket: Ticket | Batch | UUID | str, timeout: Duration | None = None) -> Any:
        """Wait for the end and give the result; JobFailed or JobCancelled where there is none."""
        return self._thread.run(self._ticket(ticket).result(timeout))

    def cancel(self, ticket: Ticket | Batch | UUID | str) -> JobInfo | dict[str, Any]:
        """Cancel it if it waits, ask it to stop if it runs; the job as it is then."""
        found: JobInfo | dict[str, Any] = self._thread.run(self._ticket(ticket).cancel())
        return found

    def close(self) -> None:
        """Let go of connections, thread and embedded database. Using it again opens it again."""
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
    """A kind of job with options for the next submit, which blocks."""

    def __init__(self, app: "Penstock", thread: LoopThread, submission: Submission) -> None:
        if submission.conn is not None:
            refuse_waiting(submission.conn, "kind.using(conn=conn).submit(...)")
        self._app = app
        self._thread = thread
        self._submission = submission

    def submit(self, /, *positions: Never, **payload: Any) -> Ticket:
        self._submission.refuse_positions(positions)
        job = self._submission.new_job(payload)
        self._thread.run(self._submission.refuse_private_webhook())
        engine = self._thread.run(self._app.engine())
        ticket: Ticket = self._run(self._submission.send(engine, job))
        self._perhaps_run([ticket])
        return ticket

    def submit_many(self, rows: Iterable[Mapping[str, Any]]) -> list[Ticket]:
        batch = self._submission.new_batch(rows)
        if not batch.kinds:
            return []
        self._thread.run(self._submission.refuse_private_webhook())
        engine = self._thread.run(self._app.engine())
        tickets: list[Ticket] = self._run(self._submission.send_many(engine, batch))
        self._perhaps_run(tickets)
        return tickets

    def _perhaps_run(self, tickets: list[Ticket]) -> None:
        """Run them in this process, where the queue is turned off (`inline`); or drive it."""
        kind = self._submission.kind
        if kind.driven:
            self._thread.begin(drive_soon(kind, tickets, committed=self._submission.conn is None))
        if kind.inline and self._submission.conn is None:
            self._thread.run(run_here(kind, tickets))
        elif kind.inline:
            self._thread.begin(run_when_committed(kind, tickets))

    def _run(self, call: Any) -> Any:
        # The caller's connection lives in the caller's thread; what uses it waits for no loop.
        return self._thread.run(call) if self._submission.conn is None else step(call)
