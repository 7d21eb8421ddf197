"""What callers send of jobs: every field of the contract, and no other."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AwareDatetime, ConfigDict, Field

from penstock.api.body import Strict
from penstock.engine.encode import CREDITS_MAX
from penstock.engine.jobs import NewJob

MOST_JOBS = 10_000
_TEN_YEARS = 3650 * 86_400

Seconds = Annotated[float, Field(gt=0, le=_TEN_YEARS)]


class SubmitJob(Strict):
    """A job that is asked for. What is left out is for its kind, plan and queue to say."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "kind": "mark",
                    "payload": {"submission_id": "s1", "assignment_id": "a1", "answer": "…"},
                    "account": "u1",
                    "delay_seconds": 60,
                }
            ]
        }
    )

    kind: Annotated[str, Field(max_length=100)]
    payload: dict[str, Any]
    account: str | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    delay_seconds: Annotated[float, Field(ge=0, le=_TEN_YEARS)] | None = None
    run_at: AwareDatetime | None = None
    dedupe_key: str | None = None
    topic: str | None = None
    price: Annotated[int, Field(ge=0, le=CREDITS_MAX)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=1000)] | None = None
    timeout_seconds: Seconds | None = None
    expires_seconds: Seconds | None = None
    metadata: dict[str, Any] | None = None
    webhook_url: str | None = None


class SubmitBatch(Strict):
    """Jobs that are accepted all, or not at all."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "jobs": [
                        {"kind": "mark", "payload": {"submission_id": "s1", "answer": "…"}},
                        {"kind": "mark", "payload": {"submission_id": "s2", "answer": "…"}},
                    ]
                }
            ]
        }
    )

    jobs: Annotated[list[SubmitJob], Field(min_length=1)]


def new_job(form: SubmitJob, payload: Mapping[str, Any], told: dict[str, Any]) -> NewJob:
    """What is asked for, with a checked payload; `told` counts where the form says nothing."""
    said: dict[str, Any] = {
        name: value for name in PLAIN if (value := getattr(form, name)) is not None
    }
    for name in LENGTHS:
        seconds = getattr(form, f"{name}_seconds")
        if seconds is not None:
            said[name] = timedelta(seconds=seconds)
    return NewJob(kind=form.kind, payload=payload, **{**told, **said})


PLAIN = (
    *("account", "priority", "run_at", "dedupe_key", "topic", "price", "max_attempts"),
    *("metadata", "webhook_url"),
)
LENGTHS = ("delay", "timeout", "expires")
