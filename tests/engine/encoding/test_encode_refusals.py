"""Messages about a value that is not JSON."""

from typing import Any

import pytest

from penstock.engine.encoding.encode import encode, odd_part
from penstock.errors import Invalid


async def rubric() -> None: ...


class Mark:
    pass


ALLOWED = "it may be a dict with text for keys, a list, a text, a number, True, False or None"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"marks": {1, 2}}, f"result.marks is a set; {ALLOWED}"),
        ({"a": [{"b": Mark()}]}, f"result.a.0.b is a Mark; {ALLOWED}"),
        (b"x", f"result is a bytes; {ALLOWED}"),
        ({("a", 1): 2}, "a key of result is a tuple, and keys are text"),
        ([1, float("nan")], "result.1 is NaN or infinite; leave it out, or give None"),
        ({"two words": {1}}, f"result[…] is a set; {ALLOWED}"),
        ({"x" * 51: object}, f"result[…] is a type; {ALLOWED}"),
    ],
)
def test_the_message_has_the_location_and_what_is_allowed(value: Any, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        encode(value, "result")
    assert caught.value.message == f"result is not JSON: {message}"


def test_a_forgotten_await_is_named() -> None:
    call = rubric()
    assert odd_part({"rubric": call}, "result") == (
        "result.rubric is a coroutine of `rubric`, which nobody awaited: write `await` before the"
        " call"
    )
    call.close()


def test_keys_of_a_payload_are_in_no_message() -> None:
    assert odd_part({"secret": [b""]}, "payload") == f"payload[…].0 is a bytes; {ALLOWED}"


def test_json_has_nothing_odd() -> None:
    assert odd_part({"a": [1, 2.5, "x", None, True, {"b": (1,)}], 5: {}}, "result") is None
