"""The OpenAI handler: streams, their faults, and deviations of compatible servers."""

import json
from typing import Any

import pytest

from penstock.failures.classify import classify
from penstock.models.openai import OpenAI, OpenAIReply, build, endpoint_of, is_strict
from penstock.models.output import Output
from penstock.models.prompt import read_prompt
from penstock.models.simulated.model import simulated
from penstock.models.stream import Events, Lines
from penstock.net.endpoint import read_endpoint
from penstock.net.provider_errors import ProviderError
from penstock.security.secret import Secret
from support.models.answering import answer, answering
from support.models.chat_handlers import ESSAY, SCHEMA, openai_config
from support.models.noted_job import NotedJob, at, fails


async def test_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    async with simulated(api_key="k-2") as model:
        read = model._read

        def read_noted(request: Any, call: Any) -> Any:
            seen.append({**request.fields(), "headers": dict(request.headers)})
            return read(request, call)

        monkeypatch.setattr(model, "_read", read_noted)
        job = NotedJob()
        asked = openai_config(
            model,
            api_key=Secret("k-2"),
            temperature=0,
            max_completion_tokens=900,
            seed=3,
            output=Output(schema=SCHEMA),
        )
        found = await build(asked)(job, {"answer": "a"})
    assert set(found) == {"score", "feedback"}
    sent = seen[0]
    assert sent["headers"]["authorization"] == "Bearer k-2"
    assert sent["headers"]["idempotency-key"] == job.key
    assert sent["messages"] == [{"role": "user", "content": "Give feedback on: a"}]
    assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})
    assert (sent["temperature"], sent["seed"], sent["max_completion_tokens"]) == (0, 3, 900)
    assert sent["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
    }


async def test_a_refusal_in_the_answer_is_recognised() -> None:
    events = [choice({"refusal": "I cannot"}), choice({}, "stop")]
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    async with answering(answer(200, {"content-type": "text/event-stream"}, data)) as port:
        asked = OpenAI(
            endpoint=endpoint_of(at(f"http://127.0.0.1:{port}")),
            model="m",
            prompt=read_prompt("p", []),
        )
        verdict, _ = await fails(build(asked), NotedJob(), {})
    assert verdict.cls == "refused"


async def test_a_wrong_key_has_its_own_class() -> None:
    async with simulated(api_key="right") as model:
        asked = openai_config(model, api_key=Secret("wrong-Zanzibar"))
        with pytest.raises(Exception, match="status 401") as caught:
            await build(asked)(NotedJob(), ESSAY)
        assert "Zanzibar" not in repr(asked) + repr(caught.value) + str(caught.value)


@pytest.mark.parametrize(
    ("url", "called"),
    [
        ("https://api.openai.com", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com/", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com/v1", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com/v1/", "https://api.openai.com/v1/chat/completions"),
        ("http://[::1]:8000/openai", "http://[::1]:8000/openai/chat/completions"),
        ("http://h/v1/chat/completions", "http://h/v1/chat/completions"),
        ("http://h/d/x?api-version=1", "http://h/d/x/chat/completions?api-version=1"),
    ],
)
def test_the_address_may_be_given_with_or_without_v1(url: str, called: str) -> None:
    assert endpoint_of(read_endpoint(url, from_variable=False)).url == called


def read_all(*events: dict[str, Any] | bytes) -> Any:
    reader = OpenAIReply(address="127.0.0.1:1")
    for event in events:
        reader.read(event if isinstance(event, bytes) else json.dumps(event).encode())
    return reader


def choice(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def test_done_without_a_stop_reason_is_incomplete() -> None:
    assert not read_all(choice({"content": "a"}), b"[DONE]").done
    assert read_all(choice({"content": "a"}), choice({}, "stop"), b"[DONE]").done


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_counts_as_tokens(name: str) -> None:
    reader = OpenAIReply(address="127.0.0.1:1")
    thought = json.dumps(choice({name: "hm", "content": None})).encode()
    assert reader.read(thought) == ("", True)


@pytest.mark.parametrize(
    "odd",
    [{"choices": []}, {"choices": [None]}, {"choices": 3}, {"choices": [{"delta": []}]}, {}],
)
def test_unusual_events_are_ignored(odd: dict[str, Any]) -> None:
    assert OpenAIReply(address="127.0.0.1:1").read(json.dumps(odd).encode()) == ("", False)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_may_be_split_anywhere(size: int) -> None:
    written = b": hello\r\ndata: {1}\r\n\r\nevent: x\ndata:{2\ndata: }\n\n\n\ndata: [DONE]"
    events = Events("h:1")
    found = []
    for start in range(0, len(written), size):
        found += events.feed(written[start : start + size])
    assert [*found, *events.end()] == [b"{1}", b"{2\n}", b"[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_may_be_split_anywhere(size: int) -> None:
    written = b'{"a":1}\n\n{"b":2}\r\n{"c"'
    lines = Lines("h:1")
    found = []
    for start in range(0, len(written), size):
        found += lines.feed(written[start : start + size])
    assert [*found, *lines.end()] == [b'{"a":1}', b"", b'{"b":2}\r', b'{"c"']


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (SCHEMA, True),
        ({**SCHEMA, "additionalProperties": True}, False),
        ({**SCHEMA, "required": ["score"]}, False),
        ({"type": "array", "items": {"properties": {"a": {}}}}, False),
        ({"type": "string"}, True),
    ],
)
def test_strict_only_if_openai_accepts_it(schema: Any, strict: bool) -> None:
    assert is_strict(schema) is strict


def test_an_event_that_does_not_end_is_given_up() -> None:
    """Lines without an empty line between them would fill the memory."""
    events = Events("model:80")
    line = b"data: " + b"x" * 1_000_000 + b"\n"
    for _ in range(4):
        assert events.feed(line) == []
    with pytest.raises(ProviderError, match="an event of more than 4194304 bytes") as caught:
        events.feed(line)
    assert classify(caught.value).cls == "bad_output"
    closed = Events("model:80")
    for _ in range(10):
        assert len(closed.feed(line + b"\n")) == 1
