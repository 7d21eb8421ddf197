"""Answers with a job in them: how to ask again, and whether anything has changed since."""

import hashlib
import math
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.queries.json_texts import Text
from penstock.engine.states import FINISHED, JobStatus
from penstock.http.middleware.requests import note_job

JSON = "application/json"
# What runs ends at any moment; what waits starts when it is its turn.
RUNNING_SECONDS = 2
LONGEST_SECONDS = 30


def retry_after(job: Text) -> int | None:
    """When to look again: half of its wait, within bounds; None: it has ended."""
    if job.status in FINISHED:
        return None
    if job.status in (JobStatus.RUNNING, JobStatus.AWAITING) or job.eta_seconds is None:
        return RUNNING_SECONDS
    return max(1, min(LONGEST_SECONDS, math.ceil(job.eta_seconds / 2)))


def answer(job: Text, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The job as Postgres wrote it."""
    note_job(job.id)
    told = dict(headers or ())
    wait = retry_after(job)
    if wait is not None:
        told["Retry-After"] = str(wait)
    return Response(job.text, status_code=status, media_type=JSON, headers=told)


def answer_if_changed(request: Request, job: Text) -> Response:
    """304 where the caller has this answer already."""
    tag = f'"{hashlib.blake2b(job.text.encode(), digest_size=12).hexdigest()}"'
    told = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if _has(request.headers.get("if-none-match"), tag):
        wait = retry_after(job)
        if wait is not None:
            told["Retry-After"] = str(wait)
        return Response(status_code=304, headers=told)
    return answer(job, headers=told)


def _has(said: str | None, tag: str) -> bool:
    if said is None:
        return False
    known = (one.strip().removeprefix("W/") for one in said.split(","))
    return said.strip() == "*" or tag in known
