"""The bodies of submits over HTTP: the fields of the contract and no others."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AwareDatetime, ConfigDict, Field, create_model

from penstock.engine.options.forms import (
    TEN_YEARS,
    Form,
    Kept,
    Moment,
    Object,
    Seconds,
    Whole,
    Word,
)
from penstock.engine.options.option import Option
from penstock.engine.options.submit import JOB
from penstock.http.routing import Strict

_LONGEST = int(TEN_YEARS.total_seconds())


def with_options(name: str, base: type[Strict], options: Iterable[Option]) -> type[Strict]:
    """Return a subclass with a field for each option, which may be left out or null."""
    fields: dict[str, Any] = {
        option.key: (_type(option.form) | None, Field(default=None, description=option.help))
        for option in options
    }
    return create_model(name, __base__=base, __doc__=base.__doc__, **fields)


def _type(form: Form) -> Any:
    """Return the JSON type of values of this form."""
    match form:
        case Whole(least, most):
            return Annotated[int, Field(ge=least, le=most)]
        case Word(choices):
            return Literal[choices]
        case Seconds(zero=True):
            return Annotated[float, Field(ge=0, le=_LONGEST)]
        case Seconds():
            return Annotated[float, Field(gt=0, le=_LONGEST)]
        case Kept():
            return Annotated[float, Field(gt=0, le=_LONGEST)] | Literal["forever"]
        case Moment():
            return AwareDatetime
        case Object():
            return dict[str, Any]
    return str


MOST_JOBS = 10_000


class _SubmitJob(Strict):
    """A job to submit. Fields that are left out come from its kind, plan and queue."""

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
    """The name of a declared kind."""
    payload: dict[str, Any]
    """The input for the handler of the kind. A server that was started with the app that declares
    the kind refuses an invalid payload (`invalid_payload`). Any other server accepts it, and the
    job fails when it runs."""


if TYPE_CHECKING:

    class SubmitJob(_SubmitJob):
        run_at: datetime | None

else:
    SubmitJob = with_options("SubmitJob", _SubmitJob, JOB)


class SubmitBatch(Strict):
    """Jobs that are all accepted or all refused."""

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


LENGTHS = tuple(option.name for option in JOB if isinstance(option.form, Seconds))
PLAIN = tuple(option.name for option in JOB if option.name not in LENGTHS)
