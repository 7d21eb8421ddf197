"""`JobInfo`: a job as every reader sees it, made from the JSON that Postgres writes (reads.sql)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.engine.states import JobStatus


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobInfo(Mapping[str, Any]):
    """A job as every reader sees it: `status()`, lists, pages, the command line.

    Attributes are typed. As a mapping it has the JSON of the HTTP API: `job.created_at` is a
    `datetime`, `job["created_at"]` its text.
    """

    id: UUID
    kind: str | None
    queue: str | None
    account: str | None
    topic: str | None
    batch: UUID | None
    status: JobStatus
    attempt: int
    failures: int
    max_attempts: int
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    stage: str | None
    stage_label: str | None
    error: dict[str, Any] | None
    waiting_for: str | None
    cancel_requested: bool
    credits: dict[str, int] | None
    # The short form of lists has none of the following.
    plan: str | None = None
    priority: int = 0
    first_job: bool = False
    deferrals: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    updated_at: datetime | None = None
    timeout_at: datetime | None = None
    stage_at: datetime | None = None
    progress: dict[str, Any] | None = None
    result: Any = None
    usage: dict[str, Any] | None = None
    position: int | None = None
    eta_seconds: float | None = None
    staleness: dict[str, Any] | None = None
    recovery: dict[str, Any] = field(default_factory=dict)
    retry_of: UUID | None = None
    retried_by: UUID | None = None
    version: int | None = None
    attempts: list[dict[str, Any]] = field(default_factory=list)
    json: dict[str, Any] = field(repr=False)

    @classmethod
    def from_json(cls, job: dict[str, Any]) -> "JobInfo":
        """Read the whole form of a job, or the short form of lists."""
        values = {name: job[name] for name in _NAMES if name in job}
        for names, read in _READ:
            for name in names:
                if (value := values.get(name)) is not None:
                    values[name] = read(value)
        return cls(**values, json=job)

    def __getitem__(self, name: str) -> Any:
        return self.json[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.json)

    def __len__(self) -> int:
        return len(self.json)


_NAMES = tuple(each.name for each in fields(JobInfo) if each.name != "json")
_READ = (
    (("id", "batch", "retry_of", "retried_by"), UUID),
    (("status",), JobStatus),
    (tuple(name for name in _NAMES if name.endswith("_at")), datetime.fromisoformat),
)
