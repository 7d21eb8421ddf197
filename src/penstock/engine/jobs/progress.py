"""What a start says while it runs: stage, progress, units, kept steps, chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from penstock.db.adapters.caller_connection import Fetch


@dataclass(frozen=True, slots=True)
class Report:
    """The latest of one start. None: as it was; a stage of "" says that there is none now."""

    job_id: UUID
    attempt: int
    stage: str | None = None
    label: str | None = None
    progress: str | None = None  # JSON text
    units: int | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    job_id: UUID
    verdict: str
    cancel: bool
    """Whether the job is asked to end."""


@dataclass(frozen=True, slots=True)
class Chunk:
    attempt: int
    seq: int
    data: Any


class Progress:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def report(self, worker: int, reports: Sequence[Report]) -> list[Reported]:
        """Write the latest of any number of starts, in one transaction."""
        units = [report.units for report in reports]
        rows = await self._fetch(
            "select job_id, verdict, cancel from penstock.report_progress($1, $2, $3, $4, $5,"
            " $6::text[]::jsonb[], $7)",
            (
                worker,
                [report.job_id for report in reports],
                [report.attempt for report in reports],
                [report.stage for report in reports],
                [report.label for report in reports],
                [report.progress for report in reports],
                None if all(one is None for one in units) else units,
            ),
        )
        return [Reported(row["job_id"], row["verdict"], row["cancel"]) for row in rows]

    async def keep_step(
        self, worker: int, job_id: UUID, attempt: int, name: str, result: str
    ) -> str:
        """Keep a step's result (JSON text) for later starts; the verdict."""
        [row] = await self._fetch(
            "select penstock.keep_step($1, $2, $3, $4, $5::text::jsonb) as verdict",
            (worker, job_id, attempt, name, result),
        )
        verdict: str = row["verdict"]
        return verdict

    async def read_steps(self, job_id: UUID) -> dict[str, Any]:
        """What earlier starts of the job have kept, by name."""
        rows = await self._fetch("select name, result from penstock.read_steps($1)", (job_id,))
        return {row["name"]: row["result"] for row in rows}

    async def append_chunks(self, worker: int, chunks: Sequence[tuple[UUID, int, int, str]]) -> int:
        """Append (job, attempt, number, JSON text); how many were added. Safe to repeat."""
        jobs, attempts, seqs, data = zip(*chunks, strict=True)
        [row] = await self._fetch(
            "select penstock.append_chunks($1, $2, $3, $4, $5::text[]::jsonb[]) as added",
            (worker, jobs, attempts, seqs, data),
        )
        added: int = row["added"]
        return added

    async def read_chunks(
        self, job_id: UUID, *, attempt: int = 0, seq: int = 0, limit: int = 1000
    ) -> list[Chunk]:
        """What the starts of a job emitted, after a place in the stream."""
        rows = await self._fetch(
            "select attempt, seq, data from penstock.read_chunks($1, $2, $3, $4)",
            (job_id, attempt, seq, limit),
        )
        return [Chunk(row["attempt"], row["seq"], row["data"]) for row in rows]
