"""The handlers of both chat protocols, with a correct and with a faulty model."""

import asyncio
from typing import Any

import pytest

from penstock.failures.classify import classify
from penstock.models import chat
from penstock.models.output import Output
from penstock.models.simulated.model import simulated
from penstock.net.provider_errors import ProviderError
from support.models.chat_handlers import (
    ESSAY,
    OLLAMA,
    OPENAI,
    PATIENT_SECONDS,
    SCHEMA,
    SHORT,
    Chat,
    nothing_left,
)
from support.models.noted_job import NotedJob, busy, fails

BOTH = (OLLAMA, OPENAI)
each_protocol = pytest.mark.parametrize("protocol", BOTH, ids=["ollama", "openai"])

Fault = tuple[str, dict[str, Any], str]


@each_protocol
async def test_tokens_are_emitted_as_they_come(protocol: Chat) -> None:
    async with simulated(tokens=30, tokens_per_second=300) as model:
        job = NotedJob()
        found = await protocol.handler(model)(job, ESSAY)
        assert found == {"text": job.heard, "model": protocol.name}
        assert len(job.emitted) > 5
        assert job.stages == [("generating", f"{protocol.name} is writing")]
        assert job.used["completion_tokens"] == 30
        assert job.used["prompt_tokens"] == model.calls[0].prompt_tokens
        # Only Ollama reports durations.
        assert (job.used.get("completion_seconds", 0) > 0) is (protocol is OLLAMA)
        assert await busy() == 0


FAULTS_OF_BOTH: list[Fault] = [
    ("refuse", {}, "unavailable"),
    ("hang", {}, "stalled"),
    ("hang_mid", {"after": 3}, "stalled"),
    ("slow_bytes", {"every": 0.02}, "stalled"),
    ("half_body", {}, "interrupted"),
    ("cut", {}, "interrupted"),
    ("reset", {}, "interrupted"),
    ("reset", {"after": 3}, "interrupted"),
    ("error_line", {}, "interrupted"),
    ("status", {"code": 400}, "invalid_request"),
    ("status", {"code": 401}, "auth"),
    ("status", {"code": 500}, "provider_error"),
    ("storm", {}, "rate_limited"),
    ("truncated_json", {}, "bad_output"),
    ("not_json", {}, "bad_output"),
    ("empty", {"what": "body"}, "bad_output"),
    ("empty", {"what": "text"}, "bad_output"),
    ("length", {}, "bad_output"),
    ("refusal", {}, "refused"),
    ("schema_invalid", {}, "bad_output"),
]
ELSEWHERE = {"Location": "http://127.0.0.1:9/"}
OLLAMA_FAULTS: list[Fault] = [
    ("error_line", {"after": 0}, "interrupted"),
    ("status", {"code": 301, "headers": ELSEWHERE}, "config"),
    ("status", {"code": 404}, "config"),
    ("status", {"code": 503, "retry_after": "7"}, "overloaded"),
    ("quota", {}, "quota"),
    ("html", {}, "overloaded"),
    ("truncation", {}, "input_truncated"),
    ("remote_host", {}, "config"),
]
OPENAI_FAULTS: list[Fault] = [
    ("status", {"code": 302, "headers": ELSEWHERE}, "config"),
    ("status", {"code": 529}, "overloaded"),
    ("quota", {"form": "insufficient"}, "quota"),
    ("quota", {"form": "spend_limit"}, "quota"),
    ("html", {"code": 502}, "overloaded"),
]
CASES = [
    *((protocol, *fault) for protocol in BOTH for fault in FAULTS_OF_BOTH),
    *((OLLAMA, *fault) for fault in OLLAMA_FAULTS),
    *((OPENAI, *fault) for fault in OPENAI_FAULTS),
]


@pytest.mark.parametrize(
    ("protocol", "fault", "terms", "cls"),
    CASES,
    ids=[f"{protocol.name}-{fault}-{cls}" for protocol, fault, _, cls in CASES],
)
async def test_every_fault_gets_its_class_in_time(
    protocol: Chat, fault: str, terms: dict[str, Any], cls: str
) -> None:
    """S9: each fault is classified soon and leaves no connection open."""
    async with simulated(tokens=40) as model:
        before = asyncio.all_tasks()
        model.order(fault, **terms)
        options: dict[str, Any] = SHORT if cls == "stalled" else {}
        if fault == "schema_invalid":
            options = {"output": Output(schema=SCHEMA)}
        if fault == "remote_host":
            options = {"local_only": True}
        verdict, took = await fails(protocol.handler(model, **options), NotedJob(), ESSAY)
        assert verdict.cls == cls
        assert verdict.address == model.url.removeprefix("http://")
        assert took < PATIENT_SECONDS / 2
        assert await busy() == 0
        await nothing_left(model, before)


@each_protocol
async def test_an_error_inside_a_stream_is_read(protocol: Chat) -> None:
    async with simulated() as model:
        model.order("error_line", after=0, message="the prompt exceeds the context length")
        verdict, _ = await fails(protocol.handler(model), NotedJob(), ESSAY)
        assert verdict.cls == "input_too_long"


@each_protocol
@pytest.mark.parametrize("form", ["negative", "missing", "absurd", "strings"])
async def test_odd_counts_are_not_believed(protocol: Chat, form: str) -> None:
    async with simulated(tokens=12) as model:
        model.order("wrong_usage", form=form)
        job = NotedJob()
        await protocol.handler(model)(job, ESSAY)
        assert "prompt_tokens" not in job.used
        # Counted by Penstock: about one token per piece.
        assert 0 < job.used["completion_tokens"] <= 12


@each_protocol
async def test_an_answer_that_does_not_end_is_given_up(
    protocol: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "TEXT_MAX", 100)
    async with simulated(tokens=200) as model:
        job = NotedJob()
        with pytest.raises(ProviderError, match="more than 100 characters") as caught:
            await protocol.handler(model)(job, ESSAY)
        assert classify(caught.value).cls == "bad_output"
        assert len(job.heard) <= 100
        assert await busy() == 0
