"""The Ollama handler against a model with every fault, one at a time."""

import asyncio
import json
import time
from typing import Any

import pytest

from penstock.errors import Invalid
from penstock.failures.classify import classify
from penstock.models.handlers.exceptions import described
from penstock.models.ollama import Ollama, _uncounted, build
from penstock.models.output import Output
from penstock.models.prompt import read_prompt
from penstock.models.simulated.model import simulated
from penstock.net.provider_errors import PROVIDER_TEXT_MAX, ProviderError
from penstock.net.transport import Transport
from support.models.answering import answer, answering
from support.models.chat_handlers import ESSAY, SCHEMA, SHORT, ollama_config
from support.models.noted_job import NotedJob, at, busy, fails
from support.waiting import eventually


async def test_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no prompt is cut silently, every call sets the window and forbids truncation."""
    seen: list[dict[str, Any]] = []
    async with simulated() as model:
        read = model._read

        def read_noted(request: Any, call: Any) -> Any:
            seen.append({**request.fields(), "headers": dict(request.headers)})
            return read(request, call)

        monkeypatch.setattr(model, "_read", read_noted)
        job = NotedJob()
        asked = ollama_config(
            model,
            system=read_prompt("You mark {answer}", ["answer"]),
            temperature=0.2,
            seed=7,
            keep_alive=60,
            output=Output(schema=SCHEMA),
        )
        await build(asked)(job, {"answer": "äh"})
    sent = seen[0]
    assert sent["headers"]["idempotency-key"] == job.key
    assert sent["messages"] == [
        {"role": "system", "content": "You mark äh"},
        {"role": "user", "content": "Give feedback on: äh"},
    ]
    assert sent["options"] == {
        "num_ctx": 8192,
        "num_predict": 2048,
        "temperature": 0.2,
        "seed": 7,
    }
    assert (sent["truncate"], sent["stream"], sent["keep_alive"]) == (False, True, 60)
    assert sent["format"] == SCHEMA


async def test_a_schema_makes_the_result_json() -> None:
    async with simulated() as model:
        found = await build(ollama_config(model, output=Output(schema=SCHEMA)))(NotedJob(), ESSAY)
        assert set(found) == {"score", "feedback"}
        found = await build(ollama_config(model, output=Output(json=True)))(NotedJob(), ESSAY)
        assert set(found) == {"feedback"}


async def test_the_models_own_error_text_is_kept_for_operators() -> None:
    async with simulated() as model:
        words = "the model llama3 needs 9 GB " + "x" * 2_000
        faults: list[tuple[str, dict[str, Any]]] = [
            ("status", {"code": 400, "body": {"error": words}}),
            ("error_line", {"after": 0, "message": words}),
        ]
        for fault, terms in faults:
            model.order(fault, **terms)
            with pytest.raises(ProviderError) as caught:
                await build(ollama_config(model))(NotedJob(), ESSAY)
            assert "9 GB" not in str(caught.value)
            kept = described(caught.value)
            assert kept.startswith(f"{caught.value}: the model llama3 needs 9 GB xx")
            assert len(kept) == len(f"{caught.value}: ") + PROVIDER_TEXT_MAX + 1


async def test_reasoning_counts_as_tokens() -> None:
    """The first token has come when the model begins to reason."""
    line = json.dumps({"message": {"content": "", "thinking": "hm"}, "done": False})
    async with answering(answer(200, {}, f"{line}\n", missing=9), "hang") as port:
        endpoint = at(f"http://127.0.0.1:{port}/api/chat")
        asked = Ollama(
            endpoint=endpoint,
            model="m",
            prompt=read_prompt("p", []),
            first_token_seconds=5,
            stall_seconds=0.1,
        )
        with pytest.raises(ProviderError, match=r"no token for 0.1 s") as caught:
            await build(asked)(NotedJob(), {})
    assert caught.value.signal.exception == "stall"


async def test_a_missing_first_token_has_its_own_error() -> None:
    async with simulated() as model:
        model.order("hang")
        with pytest.raises(ProviderError, match=r"no first token in 0.4 s") as caught:
            await build(ollama_config(model, **SHORT))(NotedJob(), ESSAY)
        assert caught.value.signal.exception == "first_token"


async def test_the_retry_delay_of_the_provider_is_kept() -> None:
    async with simulated() as model:
        model.order("status", code=503, retry_after="7")
        verdict, _ = await fails(build(ollama_config(model)), NotedJob(), ESSAY)
        assert verdict.after is not None
        assert verdict.after.total_seconds() == 7


@pytest.mark.parametrize(("fault", "terms"), [("hang_mid", {"after": 5}), ("error_line", {})])
async def test_usage_of_a_broken_answer_is_recorded(fault: str, terms: dict[str, Any]) -> None:
    async with simulated(tokens=40) as model:
        model.order(fault, **terms)
        job = NotedJob()
        await fails(build(ollama_config(model, stall_seconds=0.3)), job, ESSAY)
        assert 0 < job.used["completion_tokens"] <= 6


async def test_usage_of_a_cut_answer_is_recorded() -> None:
    async with simulated(tokens=40) as model:
        job = NotedJob()
        verdict, _ = await fails(build(ollama_config(model, num_predict=10)), job, ESSAY)
        assert verdict.cls == "bad_output"
        assert job.used["completion_tokens"] == 10


async def test_cancel_closes_the_connection_at_once() -> None:
    """A cancelled job stops the model: Ollama generates while the client stays connected."""
    async with simulated(tokens=10_000, tokens_per_second=100) as model:
        job = NotedJob()
        task = asyncio.create_task(build(ollama_config(model))(job, ESSAY))

        async def some() -> bool:
            return len(job.emitted) > 3

        await eventually(some, "tokens come")
        cancelled_at = time.time()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        call = model.calls[0]

        async def gone() -> bool:
            return call.ended_at is not None

        await eventually(gone, "the server sees it", seconds=1)
        assert call.gone
        assert (call.ended_at or 0) - cancelled_at < 0.1
        assert job.used["completion_tokens"] >= 4
        assert await busy() == 0


async def test_cancel_before_the_first_byte_closes_too() -> None:
    async with simulated() as model:
        model.order("hang")
        task = asyncio.create_task(
            build(ollama_config(model, first_token_seconds=30))(NotedJob(), ESSAY)
        )

        async def called() -> bool:
            return len(model.calls) == 1

        await eventually(called, "the call is there")
        task.cancel()
        await asyncio.wait([task])

        async def gone() -> bool:
            return model.calls[0].gone

        await eventually(gone, "the server sees it", seconds=0.5)


async def test_a_slow_database_is_not_the_models_fault() -> None:
    """While the handler waits for space in its own stream, no token is due."""
    async with simulated(tokens=5) as model:
        job = NotedJob()
        job.full.clear()
        task = asyncio.create_task(build(ollama_config(model, stall_seconds=0.05))(job, ESSAY))
        done, _ = await asyncio.wait([task], timeout=0.3)
        assert not done
        job.full.set()
        assert (await task)["text"] == job.heard


async def test_connections_are_used_again() -> None:
    async with simulated(tokens=3) as model:
        run = build(ollama_config(model))
        for _ in range(5):
            await run(NotedJob(), ESSAY)
        transport = await Transport.here()
        assert (transport.busy, transport.idle) == (0, 1)


class TestTruncation:
    """An answer to half a prompt is refused, and no complete answer is."""

    async def test_a_prompt_that_cannot_fit_is_refused_by_the_server(self) -> None:
        async with simulated() as model:
            verdict, _ = await fails(build(ollama_config(model, num_ctx=64)), NotedJob(), ESSAY)
            assert verdict.cls == "input_too_long"

    async def test_an_old_server_that_cuts_anyway_is_noticed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with simulated() as model:
            monkeypatch.setattr("penstock.models.simulated.protocols.ollama.TOO_LONG", "")
            asked = ollama_config(model, num_ctx=64)
            body = asked.body
            monkeypatch.setattr(
                Ollama, "body", lambda _, messages: {**body(messages), "truncate": True}
            )
            verdict, _ = await fails(build(asked), NotedJob(), ESSAY)
            assert verdict.cls == "input_truncated"
            assert len(model.calls) == 1  # it cannot have fitted: no second call

    async def test_a_cached_prompt_is_not_refused(self) -> None:
        """Some versions do not count cached tokens: one extra call finds that out."""
        async with simulated() as model:
            model.order("truncation", times=1)
            job = NotedJob()
            asked = ollama_config(model)
            assert (await build(asked)(job, ESSAY))["text"] == job.heard
            assert len(model.calls) == 2
            assert (asked.endpoint.address, "llama3") in _uncounted
            model.order("truncation")
            await build(asked)(NotedJob(), ESSAY)
            assert len(model.calls) == 3

    async def test_a_missing_count_is_ignored(self) -> None:
        async with simulated() as model:
            model.order("wrong_usage", form="missing")
            await build(ollama_config(model))(NotedJob(), ESSAY)
            assert len(model.calls) == 1


async def test_a_remote_host_is_allowed_without_local_only() -> None:
    async with simulated() as model:
        model.order("remote_host")
        assert (await build(ollama_config(model))(NotedJob(), ESSAY))["text"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([], "schema must be a table"),
        ({"type": "nonsense"}, "schema is not a valid JSON Schema, at type"),
        ({"$ref": "#/$defs/nope"}, "schema refers to #/\\$defs/nope, which it does not define"),
        ({"$ref": "http://127.0.0.1:9/x.json"}, "schema refers to http://127.0.0.1:9/x.json"),
    ],
)
def test_an_invalid_schema_is_reported_at_declaration(schema: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Output(schema=schema)


@pytest.mark.parametrize(
    "text", ["{", "NaN", '{"score": Infinity}', '"\\u0000"', "[" * 100_000, '"\\ud800"']
)
def test_json_that_cannot_be_stored_is_bad_output(text: str) -> None:
    with pytest.raises(ProviderError) as caught:
        Output(json=True).read(text, "127.0.0.1:1")
    assert classify(caught.value).cls == "bad_output"


def test_the_error_quotes_the_path_in_the_schema_not_the_answer() -> None:
    with pytest.raises(ProviderError, match="at properties/score/type") as caught:
        Output(schema=SCHEMA).read('{"score": "secret", "feedback": ""}', "127.0.0.1:1")
    assert "secret" not in str(caught.value)
