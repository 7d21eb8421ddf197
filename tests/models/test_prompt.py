"""Prompts and fields: every mistake in them is reported when they are declared."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Invalid
from penstock.models.fields import read_fields
from penstock.models.ollama import is_cut, least_tokens
from penstock.models.prompt import read_prompt


@pytest.mark.parametrize(
    ("text", "payload", "written"),
    [
        ("Mark: {answer}", {"answer": "it's {fine}"}, "Mark: it's {fine}"),
        ("{answer}{answer}", {"answer": "a"}, "aa"),
        ('Like {{"score": 1}}: {answer}', {"answer": "a"}, 'Like {"score": 1}: a'),
        ("[{level}]", {}, "[]"),
        ("[{level}]", {"level": None}, "[]"),
        ("{level}", {"level": 3}, "3"),
        ("{level}", {"level": True}, "true"),
        ("{level}", {"level": 1.5}, "1.5"),
        ("{answer}", {"answer": ["ä", {"b": None}]}, '["ä", {"b": null}]'),
        ("no fields", {"answer": "a"}, "no fields"),
    ],
)
def test_fields_are_filled_in(text: str, payload: dict[str, Any], written: str) -> None:
    assert read_prompt(text, ["answer", "level"]).render(payload) == written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{nope}", "names the field nope, which fields does not declare; known are answer, level"),
        ("{answer.upper}", "has {answer.upper}: braces may hold only the name of a field"),
        ("{answer[0]}", "has {answer[0]}: braces may hold only the name"),
        ("{answer!r}", "has {answer!r}: braces may hold only the name"),
        ("{answer:>5}", "has {answer:>5}: braces may hold only the name"),
        ("{}", "has {}: braces may hold only the name of a field (known are answer, level)"),
        ("{0}", "has {0}: braces may hold only the name"),
        ("{ answer }", "has { answer }: braces may hold only the name"),
        ('{"score": 1}', "write a literal brace twice, {{ or }}"),
        ("{answer", "has an unmatched brace"),
        ("answer}", "has an unmatched brace"),
        ("", "must be a text"),
        (" \n", "must be a text"),
        (5, "must be a text"),
    ],
)
def test_an_invalid_prompt_is_reported(text: Any, message: str) -> None:
    with pytest.raises(Invalid, match=r".") as caught:
        read_prompt(text, ["answer", "level"])
    assert message in str(caught.value)
    assert caught.value.field == "prompt"


@given(st.text(), st.text())
def test_values_are_never_read_as_a_prompt(before: str, value: str) -> None:
    literal = before.replace("{", "{{").replace("}", "}}")
    written = read_prompt(f"x{literal}{{answer}}", ["answer"]).render({"answer": value})
    assert written == f"x{before}{value}"


def test_fields_have_types_and_defaults() -> None:
    found = read_fields(
        {
            "answer": {"type": "str", "max_length": 10},
            "level": "int?",
            "tone": {"type": "str", "default": "kind"},
            "tags": {"type": "list?"},
        }
    )
    assert tuple(found.types) == ("answer", "level", "tone", "tags")
    assert found.defaults == {"level": None, "tone": "kind", "tags": None}
    assert found.complete({"answer": "a"}) == {"answer": "a", "tone": "kind"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("str", 'fields must be a table like { answer = "str", level = "int?" }'),
        (
            {"a": "text"},
            "fields.a is 'text'; it may be str, int, float, bool, list, dict, with a ?",
        ),
        ({"a": 5}, "fields.a is 5; it may be"),
        ({"a": {}}, "fields.a has no type; it may be"),
        ({"a": {"type": "str", "size": 1}}, "fields.a.size is not an option; known are type, defa"),
        ({"a": {"type": "int", "max_length": 1}}, "fields.a.max_length is 1; it may be"),
        ({"a": {"type": "str", "max_length": 0}}, "fields.a.max_length is 0; it may be"),
        ({"a": {"type": "int", "default": "x"}}, "fields.a.default is 'x', which is not of"),
        ({"a": {"type": "list", "default": [float("nan")]}}, "fields.a.default is [nan], which"),
        ({"_job": "str"}, "fields._job is not a name"),
        ({"two words": "str"}, "fields.two words is not a name"),
        ({"": "str"}, "is not a name"),
    ],
)
def test_invalid_fields_are_reported(table: Any, message: str) -> None:
    with pytest.raises(Invalid, match=r".") as caught:
        read_fields(table)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("", 0),
        ("one two  three\nfour", 4),
        ("Yes, it's fine.", 5),
        ("e.g. www.example.com/a?b=c", 3),
        ("国" * 40, 10),
    ],
)
def test_the_fewest_tokens_of_a_text(text: str, least: int) -> None:
    assert least_tokens([text]) == least


def test_only_a_far_too_small_count_means_a_cut_prompt() -> None:
    essay = ["word " * 100]
    assert is_cut(essay, 89)
    assert not is_cut(essay, 90)
    assert not is_cut(essay, None)
    assert not is_cut(essay, 0)
    assert not is_cut(["word " * 40], 1)


def test_a_default_is_json() -> None:
    json.dumps(read_fields({"a": {"type": "dict", "default": {"b": [1]}}}).defaults)
