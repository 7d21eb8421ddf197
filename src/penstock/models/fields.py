"""The fields of a payload declared in TOML: `fields = { answer = "str", level = "int?" }`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic

from penstock.engine.encoding.encode import encode
from penstock.errors import Invalid

_TYPES: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "list": list[Any],
    "dict": dict[str, Any],
}
_SIZED = ("str", "list", "dict")
_KNOWN = ("type", "default", "max_length")
# No leading underscore: such names are reserved for Penstock.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}", re.ASCII)
_ALLOWED = f"it may be {', '.join(_TYPES)}, with a ? after it if the field is optional"


@dataclass(frozen=True, slots=True)
class Fields:
    types: Mapping[str, Any]
    defaults: Mapping[str, Any]
    """The values of optional fields; None for a field without a default."""

    def complete(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return the payload with the defaults of missing fields."""
        own = {name: value for name, value in self.defaults.items() if value is not None}
        return {**own, **payload}


def read_fields(table: Any) -> Fields:
    """Read the declarations of `fields`; raise Invalid, which names the field."""
    if not isinstance(table, dict):
        raise _wrong("", 'must be a table like { answer = "str", level = "int?" }')
    types: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for name, declared in table.items():
        if not _NAME.fullmatch(name):
            raise _wrong(
                name[:100],
                "is not a name: up to 100 letters, digits and _, with a letter at the beginning",
            )
        options = declared if isinstance(declared, dict) else {"type": declared}
        types[name], optional = _type(name, options)
        if "default" in options:
            defaults[name] = _default(name, types[name], options["default"])
        elif optional:
            defaults[name] = None
    return Fields(types, defaults)


def _type(name: str, options: Mapping[str, Any]) -> tuple[Any, bool]:
    for key in options:
        if key not in _KNOWN:
            raise _wrong(f"{name}.{key}", f"is not an option; known are {', '.join(_KNOWN)}")
    written = options.get("type")
    if not isinstance(written, str) or written.removesuffix("?") not in _TYPES:
        raise _wrong(
            name, f"is {written!r}; {_ALLOWED}" if "type" in options else f"has no type; {_ALLOWED}"
        )
    base = written.removesuffix("?")
    kind = _TYPES[base]
    if "max_length" in options:
        longest = options["max_length"]
        if type(longest) is not int or longest < 1 or base not in _SIZED:
            raise _wrong(
                f"{name}.max_length",
                f"is {longest!r}; it may be a whole number from 1, for {', '.join(_SIZED)}",
            )
        kind = Annotated[kind, pydantic.Field(max_length=longest)]
    optional = written.endswith("?")
    return (kind | None if optional else kind), optional


def _default(name: str, kind: Any, value: Any) -> Any:
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(kind)
        default = adapter.validate_python(value)
        encode(default, "default")
    except (pydantic.ValidationError, Invalid):
        raise _wrong(f"{name}.default", f"is {value!r}, which is not of the field's type") from None
    return default


def _wrong(name: str, what: str) -> Invalid:
    field = f"fields.{name}" if name else "fields"
    return Invalid(f"{field} {what}", code="invalid_option", field=field)
