"""JSON for the database: values that cannot be stored are refused here, by name."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.engine.encoding.encode import encode, encode_each, refuse_nul
from penstock.errors import Invalid


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": [1, 2.5, None, True, "ü😀"], "b": {"c": {}}},
        {"escaped": "\\u0000 is six characters, as is \\\\u0000"},
        {"control": "\x01\t\n\x7f\u2028"},
        "text",
        0,
        [],
    ],
)
def test_json_values_are_encoded_without_change(value: Any) -> None:
    assert json.loads(encode(value, "payload")) == value


def test_text_is_compact_and_readable() -> None:
    assert encode({"name": "Zoë", "n": [1, 2]}, "payload") == '{"name":"Zoë","n":[1,2]}'


def circle() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


IMPOSSIBLE: dict[str, tuple[Any, str]] = {
    "not a number": (float("nan"), "not JSON"),
    "infinity": (float("inf"), "not JSON"),
    "bytes": (b"secret", "not JSON: .* is a bytes; it may be"),
    "a moment": (datetime(2030, 1, 1, tzinfo=UTC), "not JSON: .* is a datetime; it may be"),
    "a set": ({"secret"}, "not JSON: .* is a set; it may be"),
    "a key that is no text": ({("secret", 1): 1}, "a tuple, and keys are text"),
    "a circle": (circle(), "not JSON: Circular reference"),
    "a number of 5,000 digits": (10**5000, "not JSON"),
    "an abyss": (deep(100_000), "nested too deep"),
    "NUL": ("secret\x00", "NUL"),
    "NUL in a key": ({"secret\x00": 1}, "NUL"),
    "NUL far inside": ([{"a": ("b", ["\\u0000", "\x00"])}], "NUL"),
    "half a character": ("secret\ud800", "surrogate"),
    "half a character in a key": ({"\udfff": 1}, "surrogate"),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_value_that_postgres_cannot_store_is_refused_without_quoting_it(what: str) -> None:
    """Personal data stays out of messages, and so out of logs."""
    value, says = IMPOSSIBLE[what]
    with pytest.raises(Invalid, match=says) as caught:
        encode({"deep inside": [value]}, "payload", index=3)
    error = caught.value
    assert (error.code, error.field, error.status) == ("invalid_payload", "payload", 422)
    assert error.members == {"index": 3}
    assert "secret" not in str(error)
    assert error.__cause__ is None


def test_a_column_keeps_its_gaps() -> None:
    assert encode_each(None, "result") is None
    assert encode_each([{"a": 1}, None, 0], "result") == ['{"a":1}', None, "0"]
    with pytest.raises(Invalid, match="result is not JSON") as caught:
        encode_each([1, None, {1j}], "result")
    assert caught.value.members == {"index": 2}


@pytest.mark.parametrize("text", [None, "", "plain", "ü😀", "\x01"])
def test_texts_that_can_be_stored_pass(text: str | None) -> None:
    refuse_nul(text, "topic")


@pytest.mark.parametrize(
    ("text", "says"), [("a\x00b", "NUL"), ("a\ud800", "surrogate"), (5, "not int"), (b"x", "bytes")]
)
def test_texts_that_cannot_be_stored_are_refused_by_name(text: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        refuse_nul(text, "topic", index=1)
    assert (caught.value.code, caught.value.field) == ("invalid_job", "topic")
