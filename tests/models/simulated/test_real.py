"""A real model of half a megabyte in llama.cpp, called by Ollama's and by OpenAI's protocol."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import ollama
import openai
import pytest

from penstock.errors import Invalid, Misconfigured
from penstock.models.simulated.faults.orders import order_written
from penstock.models.simulated.options import Options
from penstock.models.simulated.real.model import RealModel
from support.models.raw import GENERATE, OLLAMA, OPENAI, ask, chat
from support.models.tiny_gguf import write_tiny_gguf
from support.waiting import eventually

WINDOW = 256


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "Tiny.gguf")


@pytest.fixture
async def model(tiny: Path) -> AsyncIterator[RealModel]:
    model = RealModel(Options(num_ctx=WINDOW, models=("m",)), tiny)
    model.open()
    yield model
    model.close()
    await model.gone()


async def test_it_generates_in_both_protocols(model: RealModel) -> None:
    few = {"num_predict": 6, "seed": 1, "temperature": 0}
    *tokens, last = (await ask(model.url, OLLAMA, chat(options=few))).lines()
    whole = (await ask(model.url, OLLAMA, chat(stream=False, options=few))).json()
    generated = (await ask(model.url, GENERATE, chat(GENERATE, stream=False, options=few))).json()
    openai = await ask(model.url, OPENAI, chat(OPENAI, stream=False, max_tokens=6))
    streamed = await ask(model.url, OPENAI, chat(OPENAI, max_tokens=6))
    assert tokens
    assert whole["message"]["content"] == "".join(one["message"]["content"] for one in tokens)
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "length", 6)
    assert last["prompt_eval_count"] == whole["prompt_eval_count"] > 60  # a token is a byte
    assert last["total_duration"] > 0
    assert generated["done_reason"] == "length"
    assert openai.json()["usage"]["completion_tokens"] == 6
    assert openai.json()["model"] == "m"
    assert streamed.body.rstrip().endswith(b"data: [DONE]")


async def test_the_answer_fits_the_schema(model: RealModel) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    fields = chat(stream=False, format=schema, options={"num_predict": 60})
    answer = (await ask(model.url, OLLAMA, fields)).json()
    assert type(json.loads(answer["message"]["content"])["ok"]) is bool


async def test_a_prompt_longer_than_the_window_is_cut_or_refused(model: RealModel) -> None:
    fields = chat(stream=False, prompt="word " * 200, options={"num_predict": 2})
    cut = (await ask(model.url, OLLAMA, fields)).json()
    refused = await ask(model.url, OLLAMA, {**fields, "truncate": False})
    openai = await ask(model.url, OPENAI, {**fields, "max_tokens": 2})
    assert 0 < cut["prompt_eval_count"] < WINDOW
    assert refused.status == 400
    assert refused.json() == {"error": "the input length exceeds the context length"}
    assert openai.json()["error"]["type"] == "exceed_context_size_error"


async def test_calls_share_one_slot_and_a_client_that_leaves_frees_it(model: RealModel) -> None:
    few = chat(options={"num_predict": 5})
    seen = await asyncio.gather(*[ask(model.url, OLLAMA, few) for _ in range(10)])
    assert {one.lines()[-1]["done"] for one in seen} == {True}
    assert model.slots.most_in_use == 1 < model.most_at_once
    async with model.slots:
        waits = asyncio.create_task(ask(model.url, OLLAMA, few))
        await eventually(lambda: _is(model.slots.waiting == 1), "somebody waits")
        waits.cancel()
        await eventually(lambda: _is(model.slots.waiting == 0), "nobody does")
    for _ in range(5):
        address = urlsplit(model.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        body = json.dumps(chat(options={"num_predict": 150})).encode()
        head = f"POST {OLLAMA} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert (await ask(model.url, OLLAMA, few)).status == 200
    await eventually(lambda: _is(model.slots.in_use == 0), "the slot is free")


async def _is(found: bool) -> bool:
    return found


async def test_the_real_clients_accept_it(model: RealModel) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    client = ollama.AsyncClient(model.url)
    answer = await client.chat("m", messages, options={"num_predict": 3})
    assert answer.eval_count == 3
    assert [one.model for one in (await client.list()).models] == ["m:latest"]
    with pytest.raises(ollama.ResponseError, match="model 'other' not found"):
        await client.chat("other", messages)
    await client.close()  # type: ignore[no-untyped-call]
    async with openai.AsyncOpenAI(base_url=f"{model.url}/v1", api_key="-", max_retries=0) as other:
        done = await other.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hello"}], max_tokens=3
        )
    assert done.usage
    assert done.usage.completion_tokens == 3


async def test_it_can_refuse_and_nothing_else(model: RealModel) -> None:
    model.take_order(order_written("refuse"))
    with pytest.raises(ConnectionRefusedError):
        await ask(model.url, OLLAMA, chat())
    model.heal()
    assert (await ask(model.url, "/api/version", method="GET")).status == 200
    with pytest.raises(Invalid, match="a real model supports only `refuse`"):
        model.take_order(order_written("hang"))


async def test_a_key_is_required(tiny: Path) -> None:
    model = RealModel(Options(num_ctx=WINDOW, api_key="k-1"), tiny)
    model.open()
    without = await ask(model.url, OPENAI, chat(OPENAI, max_tokens=2))
    key = {"Authorization": "Bearer k-1"}
    right = await ask(model.url, OPENAI, chat(OPENAI, max_tokens=2), headers=key)
    model.close()
    await model.gone()
    assert (without.status, without.json()["error"]["code"]) == (401, "invalid_api_key")
    assert right.status == 200


def test_a_missing_or_invalid_file_is_reported(tmp_path: Path) -> None:
    none = tmp_path / "none.gguf"
    with pytest.raises(Misconfigured, match=f"^{re.escape(f'There is no file {none}.')}$"):
        RealModel(Options(), none)
    (tmp_path / "odd.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(Misconfigured, match=r"cannot load .*odd\.gguf"):
        RealModel(Options(), tmp_path / "odd.gguf")


def test_without_the_extra_the_error_says_what_to_install(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(Misconfigured, match=r"pip install 'penstock\[model\]'"):
        RealModel(Options(), tiny)
