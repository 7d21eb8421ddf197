"""A handler's parameters: the fields of its payload by name and type, and optionally the job.

The signature of the function is the only declaration. A payload is checked against it at submit and
again when the job runs: a payload inserted by plain SQL was not checked before, and a job that
waited during a deployment may have an older shape.
"""

import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NotRequired

import pydantic
from pydantic_core import SchemaSerializer, core_schema
from typing_extensions import TypedDict

from penstock.errors import Invalid, Misconfigured, words_of
from penstock.models.handlers.job import Job

# Faults with a message of pydantic's own. The messages of other checks come from the app and may
# quote the value.
_WORDED = frozenset(typing.get_args(core_schema.ErrorType)) - {"value_error", "assertion_error"}
_NONE_GIVEN = inspect.Parameter.empty
_LONGEST_NAME = 100
# How many faults of a payload the message names, and how many the error lists.
_NAMED = 5
_LISTED = 100


class Parameters:
    """The fields of one kind of job. Created once, when its handler is declared."""

    kind: str
    names: tuple[str, ...]
    """The payload's fields, in the order of the function."""
    defaults: dict[str, Any]
    """The values of optional fields."""
    job_parameter: str | None
    """The parameter that receives the job, if one is annotated `Job`."""

    @classmethod
    def of(cls, function: Callable[..., Any], kind: str) -> "Parameters":
        """Read the signature; refuse, by name, every parameter that cannot be a field."""
        fields: dict[str, Any] = {}
        defaults: dict[str, Any] = {}
        job_parameter: str | None = None
        for parameter in _signature(function, kind):
            hint = _hint(function, parameter, kind)
            if _is_job(hint):
                if job_parameter is not None:
                    raise Misconfigured(
                        f"{_whose(function, kind)} takes the job twice, as {job_parameter} and as "
                        f"{parameter.name}: once is enough"
                    )
                job_parameter = parameter.name
                continue
            if parameter.default is not _NONE_GIVEN:
                defaults[parameter.name] = parameter.default
            fields[parameter.name] = hint
        return cls(kind, _whose(function, kind), fields, defaults, job_parameter)

    def __init__(
        self,
        kind: str,
        whose: str,
        fields: Mapping[str, Any],
        defaults: dict[str, Any],
        job_parameter: str | None,
    ) -> None:
        """Use `Parameters.of`."""
        self.kind = kind
        self.names = tuple(fields)
        self.defaults = defaults
        self.job_parameter = job_parameter
        adapter = _adapter(whose, fields, defaults)
        self._plain = all(_is_plain(hint) for hint in fields.values())
        self._reads = adapter.validator
        # The default would turn a NaN in an untyped field into null; the engine refuses a NaN.
        self._writes = SchemaSerializer(
            adapter.core_schema, core_schema.CoreConfig(ser_json_inf_nan="constants")
        )

    def check(self, given: Mapping[str, Any], *, index: int = 0) -> dict[str, Any]:
        """Return the payload as JSON values; raise Invalid, which names the field, not its value.

        Missing fields stay missing: the function's default applies when the job runs.
        """
        # A dict first: the check of the abstract class took a fifth of the whole check (2026-11).
        if type(given) is not dict and not isinstance(given, Mapping):
            raise self._invalid([("payload", "must be a dict of the handler's fields")], index)
        values = self._read(given, index)
        if self._plain:
            return values
        try:
            payload: dict[str, Any] = self._writes.to_python(
                values, mode="json", by_alias=True, round_trip=True, warnings="none"
            )
        except (ValueError, RecursionError):
            raise self._invalid([self._not_json(values)], index) from None
        # A type that cannot read its own JSON would fail in every attempt: refuse it at submit.
        self._read(payload, index)
        return payload

    def load(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments for the function, without the job."""
        return self._read(payload, 0)

    def _read(self, payload: Any, index: int) -> dict[str, Any]:
        most = len(self.names) + _LISTED
        is_mapping = type(payload) is dict or isinstance(payload, Mapping)
        if is_mapping and len(payload) > most:
            # It is invalid in any case: messages for a million keys took 12 s (2026-11).
            payload = dict(islice(payload.items(), most))
        try:
            values: dict[str, Any] = self._reads.validate_python(payload)
        except pydantic.ValidationError as error:
            raise self._invalid(self._faults(error), index) from None
        return values

    def _faults(self, error: pydantic.ValidationError) -> list[tuple[str, str]]:
        faults = error.errors(include_url=False, include_input=False)
        return [
            (
                ".".join(str(step)[:_LONGEST_NAME] for step in fault["loc"]) or "payload",
                self._worded(fault["type"], fault["msg"], fault.get("ctx", {})),
            )
            for fault in faults
        ]

    def _worded(self, cause: str, words: str, context: Mapping[str, Any]) -> str:
        match cause:
            case "missing":
                return "is required"
            case "invalid_key":
                return "is not a name; fields are given by name"
            case "extra_forbidden":
                return f"is not a field; known are {', '.join(self.names) or 'none'}"
            case "union_tag_invalid":  # its message quotes the value
                return f"must be of a known kind: {context.get('expected_tags')}"
            case _ if cause not in _WORDED:
                return "was refused by its own check"
        if "error" in context:  # the rest of the message quotes characters of the value
            words = words.split(",", maxsplit=1)[0].split(":", maxsplit=1)[0]
        return words.replace("Input should", "must", 1)

    def _not_json(self, values: Mapping[str, Any]) -> tuple[str, str]:
        for name, value in values.items():
            try:
                self._writes.to_python({name: value}, mode="json", warnings="none")
            except (ValueError, RecursionError):
                return name, f"cannot be stored as JSON: it is or holds {_a(type(value).__name__)}"
        return "payload", "cannot be stored as JSON"

    def _invalid(self, faults: list[tuple[str, str]], index: int) -> Invalid:
        field, what = faults[0]
        rest = [f"{name} {message}" for name, message in faults[1:_NAMED]]
        if len(faults) > _NAMED:
            rest.append(f"and {len(faults) - _NAMED} more")
        more = "".join(f"; {each}" for each in rest)
        return Invalid(
            f"{field} of job kind {self.kind} {what}{more}",
            code="invalid_payload",
            field=field,
            index=index,
            faults=[
                {"field": name, "message": f"{name} {message}"}
                for name, message in faults[:_LISTED]
            ],
        )


def _signature(function: Callable[..., Any], kind: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError, NameError):
        raise Misconfigured(
            f"the parameters of {_whose(function, kind)} cannot be read: use a plain function"
        ) from None
    for parameter in parameters:
        match parameter.kind:
            case inspect.Parameter.POSITIONAL_ONLY:
                what = "is positional-only; payloads are given by name: remove the / after it"
            case inspect.Parameter.VAR_POSITIONAL:
                what = "takes positions; payloads are given by name: name the fields instead"
            case inspect.Parameter.VAR_KEYWORD:
                what = "takes any name, so a misspelt one would go unseen: name the fields, or "
                what += "take a dict in one of them"
            case _:
                continue
        raise Misconfigured(f"parameter {parameter} of {_whose(function, kind)} {what}")
    return parameters


def _hint(function: Callable[..., Any], parameter: inspect.Parameter, kind: str) -> Any:
    if parameter.annotation is _NONE_GIVEN:
        if parameter.name == "job":
            raise Misconfigured(
                f"parameter job of {_whose(function, kind)} has no type: write `job: Job` to "
                "receive the job, or give a field of the payload its own type"
            )
        return Any
    # One parameter at a time, so that an unreadable return type does no harm.
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(holder, globalns=scope, include_extras=True)[parameter.name]
    except NameError as error:
        raise Misconfigured(
            f"the type of parameter {parameter.name} of {_whose(function, kind)} is not known at "
            f"run time: {error.name} must be imported at the top of the module, not only for the "
            "type checker"
        ) from None
    except (TypeError, SyntaxError, AttributeError) as error:
        raise Misconfigured(
            f"the type of parameter {parameter.name} of {_whose(function, kind)} cannot be read: "
            f"{words_of(error)}"
        ) from None


def _is_plain(hint: Any) -> bool:
    """Return whether values of this type are JSON values that read back unchanged."""
    if typing.get_origin(hint) in _UNIONS:
        return all(_is_plain(option) for option in typing.get_args(hint))
    return hint in (str, int, float, bool, types.NoneType)


def _is_job(hint: Any) -> bool:
    options = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
    return any(isinstance(option, type) and issubclass(option, Job) for option in options)


_UNIONS = (typing.Union, types.UnionType)


def _adapter(
    whose: str, fields: Mapping[str, Any], defaults: Mapping[str, Any]
) -> pydantic.TypeAdapter[Any]:
    """Return a checker for a dict of exactly these fields.

    Unlike with a pydantic model, a field may have any name.
    """
    make: Any = TypedDict
    shape = make(
        "Payload",
        {name: NotRequired[hint] if name in defaults else hint for name, hint in fields.items()},
    )
    shape.__pydantic_config__ = pydantic.ConfigDict(
        extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(shape)
        # This also refuses types without a JSON form.
        secret = '"writeOnly": true' in json.dumps(adapter.json_schema(), default=str)
    except pydantic.PydanticUserError:
        what = "has a type that cannot be stored as JSON: use plain types, dataclasses or pydantic"
        what += " models"
    else:
        if not secret:
            return adapter
        what = "holds a secret, which would be stored as asterisks: take the secret's name instead,"
        what += " and let the handler read it"
    if len(fields) > 1:
        for name, hint in fields.items():  # to name the parameter at fault
            _adapter(whose, {name: hint}, {})
    raise Misconfigured(f"parameter {next(iter(fields))} of {whose} {what}")


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _whose(function: Callable[..., Any], kind: str) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"job kind {kind}{where}"
