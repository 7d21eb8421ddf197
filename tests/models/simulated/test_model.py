"""The simulated model without faults: answers, slots, windows, the log of calls."""

import asyncio
import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Invalid, Misconfigured
from penstock.models.simulated.model import Model, simulated
from penstock.models.simulated.options import Options
from support.models.raw import GENERATE, IMAGES, OLLAMA, OPENAI, PROMPT, ask, chat
from support.waiting import eventually

SCHEMA = {
    "type": "object",
    "properties": {
        "score": {"type": "integer", "minimum": 1, "maximum": 6},
        "share": {"type": "number"},
        "passed": {"type": "boolean"},
        "level": {"enum": ["low", "high"]},
        "feedback": {"type": "string"},
        "points": {"type": "array", "items": {"$ref": "#/$defs/point"}, "minItems": 2},
    },
    "$defs": {"point": {"type": "object", "properties": {"text": {"type": "string"}}}},
}


async def test_ollama_sends_lines_with_durations_in_nanoseconds() -> None:
    async with simulated(tokens=12) as model:
        seen = await ask(model.url, OLLAMA, chat())
        *tokens, last = seen.lines()
    assert (seen.status, seen.headers["content-type"]) == (200, "application/x-ndjson")
    assert len(tokens) == 12
    assert all(line["message"]["role"] == "assistant" and not line["done"] for line in tokens)
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "stop", "")
    assert last["eval_count"] == 12
    assert last["prompt_eval_count"] == -(-len(PROMPT) // 4) + 4
    spent = last["prompt_eval_duration"] + last["eval_duration"]
    assert 0 < spent <= last["total_duration"] < 10**10
    assert isinstance(last["total_duration"], int)


@pytest.mark.parametrize("path", [OLLAMA, GENERATE, OPENAI])
async def test_streamed_whole_and_repeated_answers_are_the_same(path: str) -> None:
    async with simulated() as model:
        streamed = (await ask(model.url, path, chat(path))).lines()
        whole = (await ask(model.url, path, chat(path, stream=False))).json()
        again = (await ask(model.url, path, chat(path, stream=False))).json()
        seeded = chat(path, stream=False, seed=7, options={"seed": 7})
        other = (await ask(model.url, path, seeded)).json()

    def text(answer: dict[str, Any]) -> str:
        if path == OPENAI:
            part = answer["choices"][0]
            return str((part.get("message") or part["delta"]).get("content") or "")
        return str(answer["message"]["content"] if path == OLLAMA else answer["response"])

    assert "".join(map(text, streamed)) == text(whole) == text(again) != text(other)
    assert len([piece for piece in map(text, streamed) if piece]) == 40
    assert text(whole).endswith("."), "whole sentences"


async def test_it_answers_in_the_language_of_the_prompt() -> None:
    german = "Bitte gib eine Rückmeldung zu dem Aufsatz: Die Geschichte ist nicht lang."
    async with simulated() as model:
        for prompt, words in ((PROMPT, {"the", "is", "a"}), (german, {"die", "der", "ist"})):
            seen = await ask(model.url, OLLAMA, chat(stream=False, prompt=prompt))
            answer = set(seen.json()["message"]["content"].lower().split())
            assert answer & words, prompt
            assert "lorem" not in answer


async def test_openai_streams_usage_only_on_request() -> None:
    async with simulated(tokens=5) as model:
        plain = await ask(model.url, OPENAI, chat(OPENAI))
        wanted = chat(OPENAI, stream_options={"include_usage": True})
        with_usage = await ask(model.url, OPENAI, wanted)
        whole = (await ask(model.url, OPENAI, chat(OPENAI, stream=False))).json()
    assert plain.headers["content-type"] == "text/event-stream"
    assert plain.body.endswith(b"data: [DONE]\n\n")
    assert not any("usage" in line for line in plain.lines())
    *before, last = with_usage.lines()
    assert all(line["usage"] is None for line in before)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 5)
    assert last["usage"] == whole["usage"]
    assert before[-1]["choices"][0]["finish_reason"] == "stop"
    assert before[0]["choices"][0]["delta"]["role"] == "assistant"


@pytest.mark.parametrize("path", [OLLAMA, OPENAI])
async def test_an_answer_fits_the_requested_schema(path: str) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "mark", "schema": SCHEMA}}
    async with simulated() as model:
        for seed in range(20):
            fields = chat(path, stream=False, seed=seed, options={"seed": seed})
            fields |= {"format": SCHEMA} if path == OLLAMA else {"response_format": wanted}
            answer = (await ask(model.url, path, fields)).json()
            text = (answer if path == OLLAMA else answer["choices"][0])["message"]["content"]
            mark = json.loads(text)
            assert list(mark) == ["score", "share", "passed", "level", "feedback", "points"]
            assert type(mark["score"]) is int
            assert 1 <= mark["score"] <= 6
            assert isinstance(mark["share"], float | int)
            assert type(mark["passed"]) is bool
            assert mark["level"] in ("low", "high")
            assert isinstance(mark["feedback"], str)
            assert len(mark["points"]) >= 2
            assert all(isinstance(point["text"], str) for point in mark["points"])


async def test_pictures_are_real_png_files_of_the_requested_size() -> None:
    async with simulated() as model:
        seen = await ask(model.url, IMAGES, chat(IMAGES, n=2, size="40x30"))
        wrong = await ask(model.url, IMAGES, chat(IMAGES, size="huge"))
    pictures = [base64.b64decode(one["b64_json"]) for one in seen.json()["data"]]
    assert len(set(pictures)) == 2
    for picture in pictures:
        assert picture[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", picture[16:24]) == (40, 30)
        at, parts = 8, {}
        while at < len(picture):
            (length,) = struct.unpack(">I", picture[at : at + 4])
            name, data = picture[at + 4 : at + 8], picture[at + 8 : at + 8 + length]
            (crc,) = struct.unpack(">I", picture[at + 8 + length : at + 12 + length])
            assert crc == zlib.crc32(name + data)
            parts[name] = data
            at += 12 + length
        assert len(zlib.decompress(parts[b"IDAT"])) == 30 * (1 + 3 * 40)
    assert (wrong.status, wrong.json()["error"]["code"]) == (400, "invalid_value")


async def test_a_picture_depends_on_prompt_seed_quality_and_number() -> None:
    """G12: another attempt gets the same picture, any other request a different one."""
    async with simulated() as model:

        async def drawn(**more: Any) -> list[str]:
            seen = await ask(model.url, IMAGES, chat(IMAGES, **{"size": "256x256", **more}))
            assert seen.status == 200, seen.body
            return [one["b64_json"] for one in seen.json()["data"]]

        first, second = await drawn(n=2)
        assert await drawn() == [first]
        others: list[dict[str, Any]] = [
            {"prompt": "a boat"},
            {"seed": 7},
            {"quality": "high"},
            {"model": "other"},
        ]
        assert len({first, second, *[(await drawn(**other))[0] for other in others]}) == 6
        # Small enough for a page with many pictures.
        assert max(len(base64.b64decode(one)) for one in (first, second)) < 40_000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ""),
        ("prompt", 3),
        ("n", 0),
        ("n", 11),
        ("size", "0x0"),
        ("quality", "best"),
        ("response_format", "url"),
    ],
)
async def test_an_invalid_request_for_a_picture_is_refused(field: str, value: Any) -> None:
    async with simulated() as model:
        seen = await ask(model.url, IMAGES, chat(IMAGES, **{field: value}))
    assert seen.status == 400
    assert field in seen.json()["error"]["message"]


async def test_an_answer_at_its_limit_has_the_stop_reason_length() -> None:
    async with simulated(tokens=30) as model:
        fields = chat(stream=False, options={"num_predict": 8})
        answer = (await ask(model.url, OLLAMA, fields)).json()
        choice = (await ask(model.url, OPENAI, chat(OPENAI, stream=False, max_tokens=8))).json()
        endless = chat(stream=False, options={"num_predict": -1})
        whole = (await ask(model.url, OLLAMA, endless)).json()
    assert (answer["done_reason"], answer["eval_count"]) == ("length", 8)
    assert choice["choices"][0]["finish_reason"] == "length"
    assert (whole["done_reason"], whole["eval_count"]) == ("stop", 30)


async def test_a_prompt_longer_than_the_window_is_silently_cut_or_refused() -> None:
    fields = chat(stream=False, prompt="word " * 400, options={"num_ctx": 100})
    async with simulated(num_ctx=200) as model:
        cut = await ask(model.url, OLLAMA, fields)
        refused = await ask(model.url, OLLAMA, {**fields, "truncate": False})
        wide = await ask(model.url, OLLAMA, {**fields, "options": {"num_ctx": 9_000}})
        openai = await ask(model.url, OPENAI, fields)
    assert (cut.status, cut.json()["prompt_eval_count"]) == (200, 50)
    assert refused.status == 400
    assert refused.json() == {"error": "the input length exceeds the context length"}
    assert wide.json()["prompt_eval_count"] > 500
    assert (openai.status, openai.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_unknown_models_are_refused() -> None:
    async with simulated(models=("llama3", "gpt-4o")) as model:
        missing = await ask(model.url, OLLAMA, chat())
        openai = await ask(model.url, OPENAI, chat(OPENAI))
        found = await ask(model.url, OLLAMA, {**chat(), "model": "llama3:latest"})
        tags = (await ask(model.url, "/api/tags", method="GET")).json()
        listed = (await ask(model.url, "/v1/models", method="GET")).json()
        loaded = (await ask(model.url, "/api/ps", method="GET")).json()
        shown = (await ask(model.url, "/api/show", {"model": "llama3"})).json()
        unknown = await ask(model.url, "/api/show", {"model": "m"})
        version = (await ask(model.url, "/api/version", method="GET")).json()
        nowhere = await ask(model.url, "/api/nowhere", method="GET")
    assert (missing.status, missing.json()) == (404, {"error": "model 'm' not found"})
    assert (openai.status, openai.json()["error"]["code"]) == (404, "model_not_found")
    assert found.status == 200
    assert [one["name"] for one in tags["models"]] == ["llama3:latest", "gpt-4o:latest"]
    assert [one["id"] for one in listed["data"]] == ["llama3", "gpt-4o"]
    assert [one["name"] for one in loaded["models"]] == ["llama3:latest"]
    assert shown["model_info"]["llama.context_length"] == 4_096
    assert (unknown.status, nowhere.status) == (404, 404)
    assert version["version"]


async def test_slots_are_served_in_order_and_the_queue_is_unlimited() -> None:
    async with simulated(slots=2, tokens=5, tokens_per_second=500) as model:
        seen = await asyncio.gather(*[ask(model.url, OLLAMA, chat()) for _ in range(30)])
        assert {one.status for one in seen} == {200}
        assert model.most_at_once > 20
        assert max(call.connected_at_once for call in model.calls) == model.most_at_once
        report = (await ask(model.url, "/_calls", method="GET")).json()
    assert (report["slots"]["most_in_use"], report["slots"]["in_use"]) == (2, 0)
    assert (report["total"], report["open"], len(report["calls"])) == (30, 0, 30)
    begun = [call.first_byte_at for call in sorted(model.calls, key=lambda call: call.at)]
    assert begun == sorted(begun, key=lambda at: at or 0)


async def test_a_full_queue_answers_503() -> None:
    async with simulated(slots=1, max_queue=1) as model:
        model.order("hang", times=1)
        held = asyncio.create_task(ask(model.url, OLLAMA, chat()))
        await eventually(lambda: _true(model.slots.in_use == 1), "the slot is taken")
        waits = asyncio.create_task(ask(model.url, OLLAMA, chat()))
        await eventually(lambda: _true(model.slots.waiting == 1), "somebody waits")
        full = await ask(model.url, OLLAMA, chat())
        held.cancel()
        assert (await waits).status == 200
    assert full.status == 503
    assert full.json() == {
        "error": "server busy, please try again.  maximum pending requests exceeded"
    }


async def _true(found: bool) -> bool:
    return found


async def test_latency_and_pace_are_kept() -> None:
    async with simulated(latency="0.1s", tokens=20, tokens_per_second=200, jitter=0.1) as model:
        await ask(model.url, OLLAMA, chat())
        (call,) = model.calls
    assert call.first_byte_at is not None
    assert call.ended_at is not None
    assert 0.08 <= call.first_byte_at - call.at < 2
    assert 0.08 <= call.ended_at - call.first_byte_at < 2


async def test_a_key_is_required() -> None:
    async with simulated(api_key="k-1") as model:
        without = await ask(model.url, OLLAMA, chat())
        wrong = await ask(model.url, OPENAI, chat(OPENAI), headers={"Authorization": "Bearer no"})
        right = await ask(model.url, OPENAI, chat(OPENAI), headers={"Authorization": "Bearer k-1"})
    assert (without.status, without.json()) == (401, {"error": "unauthorized"})
    assert (wrong.status, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
    assert right.status == 200


async def test_the_log_has_everything_but_the_texts(tmp_path: Path) -> None:
    """Prompts never reach a log."""
    log = tmp_path / "calls.jsonl"
    async with simulated(log=log, num_ctx=10_000) as model:
        model.order("status", code=503, times=1)
        await ask(model.url, OLLAMA, chat(prompt="secret essay"))
        await ask(model.url, OPENAI, chat(OPENAI, prompt="secret essay"))
        model.order("status", contains="secret essay")
        report = await ask(model.url, "/_calls", method="GET")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(one["path"], one["status"], one["fault"]) for one in lines] == [
        (OLLAMA, 503, "status"),
        (OPENAI, 200, None),
    ]
    for one in lines:
        assert (one["model"], one["prompt_chars"], one["prompt_tokens"]) == ("m", 12, 7)
        assert one["at"] <= one["first_byte_at"] <= one["ended_at"]
        assert one["gone"] is False
    assert "secret" not in log.read_text()
    assert b"secret" not in report.data


async def test_it_notices_a_client_that_disconnects() -> None:
    async with simulated(tokens=1_000, tokens_per_second=100) as model:
        leaver = asyncio.create_task(ask(model.url, OLLAMA, chat()))
        await eventually(lambda: _true(model.slots.in_use == 1), "it is being answered")
        leaver.cancel()
        await eventually(lambda: _true(model.calls[0].gone), "the model knows that it left")
        assert model.slots.in_use == 0
        assert model.calls[0].ended_at is not None


async def test_one_connection_serves_many_calls_and_closes_after_invalid_ones() -> None:
    async with simulated() as model:
        port = int(model.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /api/version HTTP/1.1\r\nHost: h\r\n\r\n" * 3)
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split()[0]))
        for odd, status in (
            (b"nonsense\r\n\r\n", b"400"),
            (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
            (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        ):
            more, other = await asyncio.open_connection("127.0.0.1", port)
            other.write(odd)
            assert (await more.read()).split(b" ")[1] == status
            other.close()
        writer.close()
        assert (await ask(model.url, OLLAMA, b"{no")).status == 400
        assert (await ask(model.url, OLLAMA, b"[1]")).status == 400
        assert (await ask(model.url, OLLAMA, {"messages": []})).status == 400
        assert (await ask(model.url, OPENAI, {"model": "m"})).status == 400
        loading = (await ask(model.url, OLLAMA, {"model": "m", "stream": False})).json()
        assert loading["done_reason"] == "load"


async def test_a_port_in_use_is_reported_and_options_are_checked() -> None:
    async with simulated() as model:
        port = int(model.url.rpartition(":")[2])
        with pytest.raises(Misconfigured, match=f"Port {port} of 127.0.0.1 is taken"):
            Model(Options(port=port)).open()
    for wrong in ({"slots": 0}, {"jitter": 2.0}, {"tokens_per_second": 0.0}, {"latency": "soon"}):
        with pytest.raises(Invalid, match=f"{next(iter(wrong))} is"):
            Options(**wrong)
