"""Finished jobs for on_finish callbacks, in a transaction in which the app can write."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.db.adapters.caller_connection import borrow
from penstock.engine.jobs.attempts import OutcomeRow
from penstock.engine.statements import Statements


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A finished job, as an app's on_finish receives it."""

    id: UUID
    kind: str
    account: str | None
    topic: str | None
    status: str
    attempt: int
    payload: dict[str, Any]
    metadata: dict[str, Any] | None
    result: Any
    error: dict[str, Any] | None
    created_at: datetime
    finished_at: datetime


_COLUMNS = (
    "id, kind, account, topic, status, attempt, payload, metadata, result, error, created_at,"
    " finished_at"
)


class OnFinish(Statements):
    async def take(
        self, kinds: Sequence[str], *, conn: Any, job_id: UUID | None = None
    ) -> FinishedJob | None:
        """Take, in the transaction of `conn`, a finished job whose callback is due (`job_id`)."""
        rows = await borrow(conn)(
            f"select {_COLUMNS} from penstock.take_on_finish($1, $2)",  # noqa: S608
            (list(kinds), job_id),
        )
        return FinishedJob(*rows[0].values()) if rows else None

    async def hold(self, worker: int, row: OutcomeRow, *, conn: Any) -> FinishedJob | None:
        """The job as this outcome will leave it, locked until the transaction of `conn` ends.

        None if the job goes on, the attempt is not the worker's, or the job is locked.
        """
        rows = await borrow(conn)(
            f"select {_COLUMNS} from penstock.preview_finish($1, $2, $3, $4, $5::text::jsonb,"  # noqa: S608
            " $6::text::jsonb)",
            (worker, row.job_id, row.attempt, row.outcome, row.result, row.error),
        )
        return FinishedJob(*rows[0].values()) if rows else None

    async def put_off(self, job_id: UUID) -> None:
        """Note that the callback failed: it is due again after a delay, which grows."""
        await self._fetch("select penstock.postpone_on_finish($1)", (job_id,))
