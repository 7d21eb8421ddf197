"""Declared options as options of a command."""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

import typer

from penstock.engine.options.forms import Form, Seconds, Whole
from penstock.engine.options.option import Option

Command = TypeVar("Command", bound=Callable[..., None])


def taking(options: Iterable[Option]) -> Callable[[Command], Command]:
    """Give a command these options; it gets them as keyword arguments, None where not given."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command)
        *first, as_json, _ = signature.parameters.values()  # the last one is **options
        added = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[_type(option.form), _help(option)],
            )
            for option in options
        ]
        with_options = signature.replace(parameters=[*first, *added, as_json])
        command.__signature__ = with_options  # type: ignore[attr-defined]
        return command

    return decorate


def _type(form: Form) -> Any:
    return int | None if isinstance(form, Whole) else str | None


def _help(option: Option) -> Any:
    match option.form:
        case Whole(least, most):
            return typer.Option(metavar="N", min=least, max=most, help=option.help)
        case Seconds():
            sentence = f'{option.help.removesuffix(".")}, like "5m".'
            return typer.Option(metavar="DURATION", help=sentence)
    return typer.Option(help=option.help)
