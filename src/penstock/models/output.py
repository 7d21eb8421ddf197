"""The format of a model's answer: any text, JSON, or JSON that fits a schema."""

import json
from collections.abc import Iterator
from typing import Any

from penstock.engine.encoding.encode import encode
from penstock.errors import Invalid
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal


class Output:
    """The declared format: text, unless a schema or plain JSON is requested."""

    __slots__ = ("_validator", "json", "schema")

    def __init__(self, *, json: bool = False, schema: Any = None) -> None:
        self.json = json or schema is not None
        self.schema = schema
        self._validator = None if schema is None else _validator(schema)

    def read(self, text: str, address: str) -> Any:
        """Return the value in an answer, or raise an error that does not quote the answer."""
        try:
            value = json.loads(text)
            encode(value, "result")  # refuses NaN, NUL and lone surrogates
        except (ValueError, RecursionError, Invalid):
            raise _bad("bad_json", "is not JSON that can be stored", address) from None
        if self._validator is not None:
            # The error names the path in the schema; the answer's keys and values are not quoted.
            fault = next(self._validator.iter_errors(value), None)
            if fault is not None:
                where = "/".join(str(step) for step in fault.absolute_schema_path)
                raise _bad("schema", f"does not fit the schema at {where[:200]}", address)
        return value


def _validator(schema: Any) -> Any:
    # Imported here: the import takes a tenth of a second, and most jobs have no schema.
    import jsonschema
    import referencing
    from referencing.exceptions import Unresolvable

    if not isinstance(schema, dict):
        raise _wrong("must be a table, or the name of a .json file that holds an object")
    try:
        encode(schema, "schema")
    except Invalid as error:  # for example a TOML date
        raise _wrong(error.message.removeprefix("schema ")) from None
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "/".join(str(step) for step in error.absolute_path)
        raise _wrong(f"is not a valid JSON Schema{f', at {where}' if where else ''}") from None
    # The registry is empty, so that no schema is fetched from the network.
    registry: Any = referencing.Registry()
    root = referencing.jsonschema.DRAFT202012.create_resource(schema)
    resolver = registry.resolver_with_root(root)
    for table in tables(schema):
        reference = table.get("$ref")
        if isinstance(reference, str):
            try:
                resolver.lookup(reference)
            except Unresolvable:
                raise _wrong(f"refers to {reference}, which it does not define") from None
    return kind(schema, registry=registry)


def tables(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a JSON value, at any depth."""
    todo = [value]
    while todo:
        match todo.pop():
            case dict() as table:
                yield table
                todo.extend(table.values())
            case list() as items:
                todo.extend(items)
            case _:
                pass


def _bad(kind: str, what: str, address: str) -> ProviderError:
    signal = Signal(status=200, exception=kind, received=True, address=address)
    return ProviderError(f"the answer of {address} {what}", signal)


def _wrong(what: str) -> Invalid:
    return Invalid(f"schema {what}", code="invalid_option", field="schema")
