"""Where a job's dedupe key, topic and account come from: a field, a fixed value, or a function.

A field or a value is told to SQL, which then finds it for every caller. A function is the app's
own code: it is called at each submit, and plain SQL cannot submit such a kind.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.app import options
from penstock.engine.encode import encode
from penstock.errors import Invalid
from penstock.worker.parameters import Parameters

Source = str | Callable[[dict[str, Any]], str | int | None]
"""The name of a parameter, else a value; or a function of the payload."""

OPTIONS = ("dedupe", "topic", "account")
# What they say, by field of a job.
_FIELDS = {"dedupe": "dedupe_key", "topic": "topic", "account": "account"}


@dataclass(frozen=True, slots=True)
class Sources:
    """Those of one kind."""

    declared: dict[str, Any]
    """As `declare_kind` takes them."""
    computed: Mapping[str, Callable[[dict[str, Any]], Any]]
    filled: Mapping[str, Any]
    """Defaults of the fields among them: SQL reads the payload, and knows no defaults."""

    def complete(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The payload with those fields in it that a key is read from."""
        return {**self.filled, **payload} if self.filled else payload

    def compute(self, payload: dict[str, Any]) -> dict[str, str]:
        """What the functions say for one payload, by field of the job."""
        found = {}
        for field, function in self.computed.items():
            value = function(payload)
            if isinstance(value, int) and not isinstance(value, bool):
                value = str(value)
            if value is None:
                continue
            if not isinstance(value, str):
                raise Invalid(
                    f"the function for {field} must answer a text, a number or None, not "
                    f"{type(value).__name__}",
                    code="invalid_job",
                    field=field,
                )
            found[field] = value
        return found


def read_sources(parameters: Parameters, **said: Source | None) -> Sources:
    """What `@app.job(dedupe=…, topic=…, account=…)` means for a handler with these parameters."""
    declared: dict[str, Any] = {}
    computed: dict[str, Callable[[dict[str, Any]], Any]] = {}
    for option, source in said.items():
        match source:
            case None:
                continue
            case str() if source in parameters.names:
                declared[f"{option}_field"] = source
            case str():
                declared[option] = options.text(source, option)
            case _ if _is_plain_function(source):
                computed[_FIELDS[option]] = source
            case _:
                raise options.wrong(
                    option,
                    source,
                    "it may be the name of a parameter, a value, or a plain function of the "
                    "payload",
                )
    if computed:
        declared["computed"] = [option for option in OPTIONS if _FIELDS[option] in computed]
    fields = [declared[f"{option}_field"] for option in OPTIONS if f"{option}_field" in declared]
    return Sources(declared, computed, _defaults(parameters, fields))


def _defaults(parameters: Parameters, fields: list[str]) -> dict[str, Any]:
    found = {}
    for field in fields:
        value = parameters.defaults.get(field)
        if value is not None:
            encode(value, field)  # refused now rather than at each submit
            found[field] = value
    return found


def _is_plain_function(source: Any) -> bool:
    return callable(source) and not inspect.iscoroutinefunction(source)
