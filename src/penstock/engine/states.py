"""The lifecycle as data. Its diagram is in sql/functions/lifecycle/lifecycle.sql."""

from enum import StrEnum


class JobStatus(StrEnum):
    SCHEDULED = "scheduled"  # not due yet: delayed or backing off
    QUEUED = "queued"
    RUNNING = "running"
    AWAITING = "awaiting"  # dispatched; waits for its callback
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE = frozenset({JobStatus.SCHEDULED, JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.AWAITING})
FINISHED = frozenset(JobStatus) - LIVE
STATUSES = {status.value: status for status in JobStatus}
