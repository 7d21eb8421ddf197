"""What callers send of jobs: every field of the contract, and no other."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field

from penstock.engine.jobs.requests import NewJob
from penstock.engine.options.forms import Seconds
from penstock.engine.options.submit import JOB
from penstock.http.schemas.body import Strict
from penstock.http.schemas.options import with_options

MOST_JOBS = 10_000


class _SubmitJob(Strict):
    """A job that is asked for. What is left out is for its kind, plan and queue to say."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [
                {
                    "kind": "mark",
                    "payload": {"submission_id": "s1", "assignment_id": "a1", "answer": "…"},
                    "account": "u1",
                    "delay_seconds": 60,
                }
            ]
        },
    )

    kind: Annotated[str, Field(max_length=100)]
    """Which of the declared kinds of job."""
    payload: dict[str, Any]
    """The fields of its kind. A server that was started with the app that declares the kind refuses
    what does not fit, `invalid_payload`; any other accepts it, and the job fails when it runs."""


if TYPE_CHECKING:

    class SubmitJob(_SubmitJob):
        run_at: datetime | None

else:
    SubmitJob = with_options("SubmitJob", _SubmitJob, JOB)


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


LENGTHS = tuple(option.name for option in JOB if isinstance(option.form, Seconds))
PLAIN = tuple(option.name for option in JOB if option.name not in LENGTHS)
