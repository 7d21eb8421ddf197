"""The clients that people use, against the simulated model: they must take it for the real thing.

And what they raise when it fails, with the class that we make of it.
"""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import ollama
import openai
import pytest

from penstock.failures.classify import classify
from penstock.models.simulated.model import Model, simulated

MESSAGES: Any = [{"role": "user", "content": "Please comment on the essay about the bicycle."}]
SCHEMA: Any = {
    "type": "object",
    "properties": {"score": {"type": "integer"}, "feedback": {"type": "string"}},
    "required": ["score", "feedback"],
    "additionalProperties": False,
}


@asynccontextmanager
async def of_ollama(model: Model) -> AsyncIterator[ollama.AsyncClient]:
    client = ollama.AsyncClient(model.url)
    try:
        yield client
    finally:
        await client.close()  # type: ignore[no-untyped-call]


def of_openai(model: Model) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{model.url}/v1", api_key="k-1", max_retries=0)


async def test_ollama_chats_streams_and_generates() -> None:
    async with simulated(models=("llama3",)) as model, of_ollama(model) as client:
        whole = await client.chat("llama3", MESSAGES)
        parts = [part async for part in await client.chat("llama3", MESSAGES, stream=True)]
        generated = await client.generate("llama3", "Please comment on this.")
        listed = await client.list()
        shown = await client.show("llama3")
        loaded = await client.ps()
    assert whole.message.content == "".join(part.message.content or "" for part in parts)
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "stop", 40)
    assert parts[-1].total_duration
    assert generated.response
    assert [one.model for one in listed.models] == ["llama3:latest"]
    assert shown.capabilities == ["completion"]
    assert [one.model for one in loaded.models] == ["llama3:latest"]


async def test_openai_chats_streams_and_lists() -> None:
    async with simulated(models=("gpt-4o",), api_key="k-1") as model, of_openai(model) as client:
        whole = await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
        stream = await client.chat.completions.create(
            model="gpt-4o", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        parts = [part async for part in stream]
        listed = [one.id async for one in client.models.list()]
    streamed = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert whole.choices[0].message.content == streamed
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage
    assert parts[-1].usage == whole.usage
    assert listed == ["gpt-4o"]


async def test_both_get_json_that_fits_the_schema() -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "mark", "schema": SCHEMA}}
    async with simulated() as model, of_ollama(model) as first, of_openai(model) as client:
        one = await first.chat("m", MESSAGES, format=SCHEMA)
        two = await client.chat.completions.create(
            model="m", messages=MESSAGES, response_format=wanted
        )
    for text in (one.message.content, two.choices[0].message.content):
        mark = json.loads(text or "")
        assert set(mark) == {"score", "feedback"}
        assert isinstance(mark["score"], int)


async def test_openai_draws() -> None:
    async with simulated() as model, of_openai(model) as client:
        drawn = await client.images.generate(model="gpt-image-1", prompt="a bicycle", n=2)
    assert drawn.data
    for one in drawn.data:
        assert base64.b64decode(one.b64_json or "").startswith(b"\x89PNG")


async def test_a_missing_model_is_a_configuration_error() -> None:
    async with (
        simulated(models=("llama3",)) as model,
        of_ollama(model) as first,
        of_openai(model) as client,
    ):
        with pytest.raises(ollama.ResponseError, match="model 'm' not found") as one:
            await first.chat("m", MESSAGES)
        with pytest.raises(openai.NotFoundError) as two:
            await client.chat.completions.create(model="m", messages=MESSAGES)
    assert one.value.status_code == 404
    assert [classify(found.value).cls for found in (one, two)] == ["config", "config"]


async def test_a_busy_server_is_overloaded() -> None:
    async with (
        simulated() as model,
        of_ollama(model) as first,
        of_openai(model) as client,
    ):
        model.order("status", code=503)
        with pytest.raises(ollama.ResponseError, match="maximum pending requests") as one:
            await first.chat("m", MESSAGES)
        with pytest.raises(openai.InternalServerError) as two:
            await client.chat.completions.create(model="m", messages=MESSAGES)
    assert one.value.status_code == 503
    assert [classify(found.value).cls for found in (one, two)] == ["overloaded", "overloaded"]


async def test_an_error_in_the_middle_of_a_stream_is_an_interruption() -> None:
    async with simulated() as model, of_ollama(model) as client:
        model.order("error_line", after=2)
        stream = await client.chat("m", MESSAGES, stream=True)
        before = [await anext(stream) for _ in range(2)]
        with pytest.raises(ollama.ResponseError, match="unexpected EOF") as raised:
            await anext(stream)
    assert all(part.message.content for part in before)
    assert raised.value.status_code == -1
    assert classify(raised.value).cls == "interrupted"


async def test_a_dead_server_is_unavailable() -> None:
    async with (
        simulated() as model,
        of_ollama(model) as first,
        of_openai(model) as client,
    ):
        model.order("refuse")
        with pytest.raises(ConnectionError) as one:
            await first.chat("m", MESSAGES)
        with pytest.raises(openai.APIConnectionError) as two:
            await client.chat.completions.create(model="m", messages=MESSAGES)
    assert type(one.value) is ConnectionError
    assert [classify(found.value).cls for found in (one, two)] == ["unavailable", "unavailable"]


async def test_too_many_requests_raise_once_and_carry_the_retry_delay() -> None:
    async with simulated() as model, of_openai(model) as client:
        model.order("storm", code=429, form="seconds", after=7)
        with pytest.raises(openai.RateLimitError) as raised:
            await client.chat.completions.create(model="m", messages=MESSAGES)
        assert len(model.calls) == 1
    verdict = classify(raised.value)
    assert verdict.cls == "rate_limited"
    assert verdict.after is not None
    assert verdict.after.total_seconds() == pytest.approx(7, abs=1)


async def test_a_wrong_key_is_refused() -> None:
    async with simulated(api_key="another") as model, of_openai(model) as client:
        with pytest.raises(openai.AuthenticationError) as raised:
            await client.chat.completions.create(model="m", messages=MESSAGES)
    assert classify(raised.value).cls == "auth"
