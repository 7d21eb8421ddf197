"""Submits over HTTP: every field of the contract and no other, checked with the kind's handler."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field

from penstock.engine.jobs.jobs import NewJob
from penstock.engine.options.forms import Seconds
from penstock.engine.options.submit import JOB
from penstock.errors import NotAllowed, Refused
from penstock.http.backend import Kinds
from penstock.http.schemas.body import Strict
from penstock.http.schemas.options import with_options

MOST_JOBS = 10_000
# An account's key may not set these: they are up to the operator.
_RESERVED = ("account", "price", "priority", "max_attempts", "timeout_seconds")


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


def refuse_reserved(form: SubmitJob, place: str = "") -> None:
    """Refuse what an account's key may not set: it does not choose its price or its priority."""
    for name in _RESERVED:
        if getattr(form, name) is not None:
            raise NotAllowed(
                f"{place}{name} is not for an account's key to say",
                code="not_allowed",
                field=f"{place}{name}",
                hint="Leave it out, or submit with a key of kind app.",
            )


def check_payload(
    kinds: Kinds, form: SubmitJob, *, index: int = 0
) -> tuple[Mapping[str, Any], dict[str, Any], bool]:
    """The payload, what the app's code computes of it, and whether this process knows the kind."""
    checked = kinds.check(form.kind, form.payload, index=index)
    if checked is None:
        return form.payload, {}, False
    payload, computed = checked
    return payload, computed, True


@contextmanager
def naming_place(*, batch: bool = False) -> Iterator[None]:
    """Refusals say where in the body: `payload.answer`, `jobs.17.payload.answer`."""
    try:
        yield
    except Refused as error:
        if error.code == "invalid_payload":
            error.field = _in_payload(error.field)
            for fault in error.members.get("faults", ()):
                fault["field"] = _in_payload(fault["field"])
        index = error.members.get("index")
        if not batch:
            error.members.pop("index", None)
        elif isinstance(index, int) and error.field not in (None, "jobs"):
            error.field = f"jobs.{index}.{error.field}"
            for fault in error.members.get("faults", ()):
                fault["field"] = f"jobs.{index}.{fault['field']}"
        raise


def _in_payload(field: str | None) -> str:
    if field is None or field == "payload" or field.startswith("payload."):
        return field or "payload"
    return f"payload.{field}"
