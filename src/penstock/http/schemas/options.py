"""Declared options as fields of a body."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, create_model

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
from penstock.http.schemas.body import Strict

_LONGEST = int(TEN_YEARS.total_seconds())


def with_options(name: str, base: type[Strict], options: Iterable[Option]) -> type[Strict]:
    """Such a body with a field for each option, which may be left out or null."""
    fields: dict[str, Any] = {
        option.key: (_type(option.form) | None, Field(default=None, description=option.help))
        for option in options
    }
    return create_model(name, __base__=base, __doc__=base.__doc__, **fields)


def _type(form: Form) -> Any:
    """Values of this form in JSON."""
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
