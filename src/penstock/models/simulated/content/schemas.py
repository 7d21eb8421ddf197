"""JSON that satisfies a simple schema: what a model bound by a grammar would write."""

import math
from collections.abc import Mapping
from random import Random
from typing import Any

from penstock.models.simulated.content.texts import sentence

# A schema that refers to itself has no end.
_DEEPEST = 8
_MOST_ITEMS = 3
_RANGE = 9  # numbers without bounds are from 1 to 10


def value(schema: Any, prompt: str, random: Random) -> Any:
    """A value of this schema; where that is not understood, `null`."""
    return _Writer(schema, prompt, random).value(schema, 0)


class _Writer:
    def __init__(self, root: Any, prompt: str, random: Random) -> None:
        self._root, self._prompt, self._random = root, prompt, random

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return None
        if "$ref" in schema:
            return self.value(self._referred(str(schema["$ref"])), depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._random.choice(list(schema["enum"]))
        for choice in ("anyOf", "oneOf", "allOf"):
            if schema.get(choice):
                return self.value(schema[choice][0], depth + 1)
        return self._typed(schema, depth)

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else None)
        match kind[0] if isinstance(kind, list) and kind else kind:
            case "object":
                parts = schema.get("properties", {}).items()
                return {name: self.value(part, depth + 1) for name, part in parts}
            case "array":
                return self._array(schema, depth)
            case "string":
                text = sentence(self._prompt, self._random)[: schema.get("maxLength")]
                return text.ljust(schema.get("minLength", 0), ".")
            case "integer":
                low, high = _bounds(schema, 1)
                least = math.ceil(low)
                return self._random.randint(least, max(least, math.floor(high)))
            case "number":
                low, high = _bounds(schema, 0.01)
                return min(max(round(self._random.uniform(low, high), 2), low), high)
            case "boolean":
                return self._random.choice([True, False])
            case _:
                return None

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        least = schema.get("minItems", 1)
        count = self._random.randint(least, max(least, schema.get("maxItems", _MOST_ITEMS)))
        part = schema.get("items", {"type": "string"})
        return [self.value(part, depth + 1) for _ in range(count)]

    def _referred(self, reference: str) -> Any:
        """What `#/$defs/Name` stands for, in the same document."""
        value = self._root
        for part in reference.removeprefix("#").strip("/").split("/"):
            value = value.get(part) if part and isinstance(value, Mapping) else value
        return value


def _bounds(schema: Mapping[str, Any], inward: float) -> tuple[float, float]:
    """Least and greatest; `inward` is how far exclusive bounds are moved."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + inward
    if high is None and "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - inward
    if low is None:
        low = 1 if high is None or high >= 1 else high - _RANGE
    return low, max(low, low + _RANGE if high is None else high)
