"""The schemas of answers, for the OpenAPI document only: the JSON itself comes from Postgres."""

from dataclasses import fields
from datetime import datetime
from types import GenericAlias
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, create_model

from penstock.engine.jobs.info import JobInfo
from penstock.engine.states import JobStatus

_EXAMPLE: dict[str, Any] = {
    "id": "0199c2f0-7c1e-7b3a-9d52-5f7a3c1e8b44",
    "kind": "mark",
    "queue": "ollama",
    "account": "u1",
    "plan": "free",
    "topic": "a1",
    "batch": None,
    "status": "queued",
    "priority": 50,
    "first_job": False,
    "attempt": 0,
    "failures": 0,
    "deferrals": 0,
    "max_attempts": 3,
    "metadata": {},
    "created_at": "2026-11-16T09:30:00.000000Z",
    "updated_at": "2026-11-16T09:30:00.000000Z",
    "run_at": "2026-11-16T09:30:00.000000Z",
    "started_at": None,
    "timeout_at": None,
    "finished_at": None,
    "stage": None,
    "stage_label": None,
    "stage_at": None,
    "progress": None,
    "result": None,
    "usage": None,
    "error": None,
    "position": 3,
    "eta_seconds": 42.0,
    "waiting_for": "queue_limit",
    "staleness": None,
    "recovery": {"count": 0, "max": 3, "last_at": None, "next_at": None},
    "credits": {"reserved": 1, "charged": 0, "refunded": 0},
    "cancel_requested": False,
    "retry_of": None,
    "retried_by": None,
    "version": 1,
    "attempts": [],
}


class Answer(BaseModel):
    """Fields may be added later: programs should ignore fields they do not know."""

    model_config = ConfigDict(extra="allow")


def page_of(name: str, item: type[Answer]) -> type[Answer]:
    """Return the schema of a page of a list."""
    items: Any = GenericAlias(list, item)
    return create_model(name, __base__=Answer, items=(items, ...), next_cursor=(str | None, ...))


class Progress(Answer):
    done: float | None = None
    total: float | None = None
    partial: Any = None


class Error(Answer):
    """`class` is one of a fixed set, such as timeout, rate_limited, bad_output, worker_lost."""

    class_: str | None = Field(alias="class")
    reason: str | None = None
    message: str | None = None
    """Accounts' keys and tokens get a general sentence for the class, unless it is `public`."""
    retryable: bool
    public: bool | None = None
    """True if the app wrote the message for its customers (`raise Fail("why")`); else left out."""


class Staleness(Answer):
    stale: bool
    since: datetime
    stage: str | None = None
    message: str


class Recovery(Answer):
    count: int
    max: int | None
    last_at: datetime | None
    next_at: datetime | None


class Credits(Answer):
    reserved: int
    charged: int
    refunded: int


class Attempt(Answer):
    """A settled attempt. Accounts' keys and tokens do not see its worker, message and frames."""

    attempt: int
    worker: str | None
    started_at: datetime
    ended_at: datetime
    outcome: str
    error_class: str | None
    message: str | None
    frames: list[str]


# JobInfo has these as plain JSON.
_TYPES: dict[str, Any] = {
    **{field.name: field.type for field in fields(JobInfo)},
    "updated_at": datetime,
    "version": int,
    "progress": Progress | None,
    "error": Error | None,
    "staleness": Staleness | None,
    "recovery": Recovery,
    "credits": Credits | None,
    "attempts": list[Attempt],
}
_FIELDS: dict[str, Any] = {name: (_TYPES[name], ...) for name in _EXAMPLE if name != "attempts"}


class ListedJob(create_model("ListedJob", __base__=Answer, **_FIELDS)):  # type: ignore[misc]
    """A job in a list: without its attempts, and without a computed position."""


class Job(ListedJob):
    """A job, as every interface shows it."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [_EXAMPLE]})

    attempts: list[Attempt]


class SubmittedJob(Job):
    """A job and the outcome of the submit."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [{**_EXAMPLE, "deduplicated": False, "replayed": False, "balance": 9}]
        },
    )

    deduplicated: bool
    replayed: bool
    balance: int | None
    jobs: list[UUID] | None = None
    """Of a kind that is split: all jobs that the request was split into."""


class RetriedJob(Job):
    deduplicated: bool


JobPage = page_of("JobPage", ListedJob)


class AcceptedJob(Answer):
    id: UUID
    status: JobStatus
    deduplicated: bool


class AcceptedBatch(Answer):
    batch: UUID | None
    """None: every job was a duplicate of a live one."""
    items: list[AcceptedJob]
    accepted: int
    deduplicated: int


class Batch(Answer):
    """Jobs that were submitted together, with their totals."""

    id: UUID
    account: str | None
    status: JobStatus
    total: int
    pruned: int
    succeeded: int
    failed: int
    cancelled: int
    running: int
    queued: int
    progress: Progress
    credits: Credits | None
    position: int | None
    eta_seconds: float | None
    created_at: datetime
    finished_at: datetime | None
    items: list[ListedJob]
    next_cursor: str | None


class Token(Answer):
    token: str
    expires_at: datetime


class Key(Answer):
    """A key without its secret."""

    id: str
    kind: str
    account: str | None
    name: str | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewKey(Key):
    """A new key with its secret, which cannot be shown again."""

    key: str


KeyPage = page_of("KeyPage", Key)
