"""Every fault that can be ordered, as a raw client receives it."""

import asyncio
import json
import re
import socket
import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from penstock.errors import Invalid
from penstock.models.simulated.faults.orders import FAULTS, Fault, order_written
from penstock.models.simulated.model import Model, simulated
from support.models.raw import GENERATE, IMAGES, OLLAMA, OPENAI, PROMPT, ask, chat
from support.waiting import eventually

STREAMS = [OLLAMA, GENERATE, OPENAI]
EVERY = pytest.mark.parametrize(
    ("path", "stream"), [(p, s) for p in STREAMS for s in (True, False)] + [(IMAGES, False)]
)
SHORT = 0.15  # seconds in which an answer would have come


@EVERY
async def test_hang_accepts_the_call_and_never_answers(path: str, stream: bool) -> None:
    async with simulated() as model:
        model.order("hang", times=1)
        seen = await ask(model.url, path, chat(path, stream=stream), patience=SHORT)
        assert (seen.status, seen.end) == (None, "silence")
        await eventually(lambda: _is(model.calls[0].gone), "the client is seen to leave")
        assert (model.calls[0].fault, model.calls[0].status) == ("hang", None)
        assert (await ask(model.url, path, chat(path, stream=stream))).status == 200


async def _is(found: bool) -> bool:
    return found


@EVERY
async def test_delay_answers_correctly_but_late(path: str, stream: bool) -> None:
    async with simulated() as model:
        model.order("delay", by=SHORT, times=1)
        late = await ask(model.url, path, chat(path, stream=stream))
        soon = await ask(model.url, path, chat(path, stream=stream))
        spent = [(call.first_byte_at or 0) - call.at for call in model.calls]
    assert (late.status, soon.status) == (200, 200)
    assert spent[0] >= SHORT > spent[1]


@EVERY
async def test_hang_mid_sends_some_tokens_and_then_nothing(path: str, stream: bool) -> None:
    async with simulated() as model:
        model.order("hang_mid", after=2)
        seen = await ask(model.url, path, chat(path, stream=stream), patience=SHORT)
    assert (seen.status, seen.end) == (200, "silence")
    if stream:
        assert len(seen.lines()) == (3 if path == OPENAI else 2)  # its first line names the role
    else:
        assert 0 < len(seen.body) < int(seen.headers["content-length"])


@EVERY
async def test_slow_bytes_are_correct_and_come_in_small_pieces(path: str, stream: bool) -> None:
    async with simulated(tokens=3) as model:
        well = await ask(model.url, path, chat(path, stream=stream))
        model.order("slow_bytes", size=16, every=0.001)
        slow = await ask(model.url, path, chat(path, stream=stream))
    assert (slow.status, slow.end) == (200, "complete")
    assert slow.pieces >= 8 > well.pieces
    assert len(slow.lines() if stream else slow.json()) == len(
        well.lines() if stream else well.json()
    )


async def test_a_client_that_leaves_after_the_last_byte_was_answered() -> None:
    async with simulated(tokens=3) as model:
        model.order("slow_bytes", size=64, every=0.05)
        await ask(model.url, OPENAI, chat(OPENAI, stream=False))

        async def closed() -> bool:
            return model.calls[0].ended_at is not None

        await eventually(closed, "the call has closed")
        assert not model.calls[0].gone


@EVERY
async def test_half_body_closes_in_the_middle(path: str, stream: bool) -> None:
    async with simulated() as model:
        model.order("half_body")
        seen = await ask(model.url, path, chat(path, stream=stream))
    assert (seen.status, seen.end) == (200, "closed")
    assert b"[DONE]" not in seen.data
    with pytest.raises(json.JSONDecodeError):
        seen.lines() if stream else seen.json()


@pytest.mark.parametrize("path", STREAMS)
async def test_cut_closes_in_good_order_before_the_final_message(path: str) -> None:
    async with simulated() as model:
        model.order("cut")
        seen = await ask(model.url, path, chat(path))
    assert (seen.status, seen.end) == (200, "complete")
    assert not any(line.get("done") for line in seen.lines())
    assert b"[DONE]" not in seen.data


@EVERY
async def test_reset_comes_before_the_first_byte_or_later(path: str, stream: bool) -> None:
    async with simulated() as model:
        model.order("reset", times=1)
        before = await ask(model.url, path, chat(path, stream=stream))
        model.order("reset", after=2)
        after = await ask(model.url, path, chat(path, stream=stream))
    assert (before.status, before.end) == (None, "reset")
    assert (after.status, after.end) == (200, "reset")
    assert after.data


async def test_refuse_closes_the_port_and_resets_open_connections() -> None:
    async with simulated(control=0) as model:
        assert model.control_url
        model.order("hang", times=1)
        held = asyncio.create_task(ask(model.url, OLLAMA, chat()))
        await eventually(lambda: _is(model.slots.in_use == 1), "a call is open")
        model.order("refuse")
        assert (await held).end == "reset"
        assert not model.calls[0].gone
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                await ask(model.url, OLLAMA, chat())
        report = (await ask(model.control_url, "/_calls", method="GET")).json()
        assert (report["listens"], report["url"], report["open"]) == (False, model.url, 0)
        model.heal()
        assert (await ask(model.url, OLLAMA, chat())).status == 200


async def test_no_other_program_can_take_the_port_of_a_refusing_model() -> None:
    async with simulated() as model:
        port = int(model.url.rpartition(":")[2])
        model.order("refuse")
        with pytest.raises(OSError, match="already in use"):
            socket.create_server(("127.0.0.1", port))
        model.heal()
        assert await statuses(model, 1) == [200]


async def test_refuse_ends_after_the_given_seconds() -> None:
    async with simulated() as model:
        model.order("refuse", seconds=0.1)
        with pytest.raises(ConnectionRefusedError):
            await ask(model.url, OLLAMA, chat())

        async def answers() -> bool:
            try:
                return (await ask(model.url, OLLAMA, chat())).status == 200
            except ConnectionRefusedError:
                return False

        await eventually(answers, "the port is open again")


CODES = [400, 401, 402, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504, 529]


@pytest.mark.parametrize("code", CODES)
async def test_status_is_any_code_with_a_body_of_the_protocol(code: int) -> None:
    async with simulated() as model:
        model.order("status", code=code)
        ollama = await ask(model.url, OLLAMA, chat())
        openai = await ask(model.url, OPENAI, chat(OPENAI))
        assert [call.status for call in model.calls] == [code, code]
    assert (ollama.status, openai.status) == (code, code)
    if code == 529:
        assert openai.json()["error"]["type"] == "overloaded_error"
    else:
        assert isinstance(ollama.json()["error"], str)
        assert set(openai.json()["error"]) == {"message", "type", "param", "code"}


async def test_status_accepts_any_body_and_headers() -> None:
    async with simulated() as model:
        model.order("status", code=418, body="short and stout", headers={"X-Pot": "tea"}, times=1)
        text = await ask(model.url, OLLAMA, chat())
        model.order("status", code=503, body={"odd": [1]}, retry_after="7", times=1)
        other = await ask(model.url, OLLAMA, chat())
    assert (text.status, text.body, text.headers["x-pot"]) == (418, b"short and stout", "tea")
    assert (other.json(), other.headers["retry-after"]) == ({"odd": [1]}, "7")


@pytest.mark.parametrize("code", [429, 503, 529])
async def test_a_storm_has_every_form_of_retry_after(code: int) -> None:
    async with simulated() as model:
        model.order("storm", code=code, after=3)
        seen = [await ask(model.url, OPENAI, chat(OPENAI)) for _ in range(8)]
        model.heal()
        model.order("storm", code=code, form="negative", after=3)
        chosen = await ask(model.url, OPENAI, chat(OPENAI))
    assert {one.status for one in seen} == {code}
    forms = [one.headers.get("retry-after", one.headers.get("retry-after-ms")) for one in seen]
    date = forms.pop(2)
    assert forms == ["3", "3.000", "3000", "soon", "-3", None, "3"]
    assert date is not None
    left = parsedate_to_datetime(date) - datetime.now(UTC)
    assert timedelta(0) < left <= timedelta(seconds=3)
    assert "retry-after-ms" in seen[3].headers
    assert chosen.headers["retry-after"] == "-3"


@pytest.mark.parametrize(
    ("form", "status", "code"),
    [
        ("insufficient", 429, "insufficient_quota"),
        ("credit", 429, "credit_balance_exhausted"),
        ("spend_limit", 429, "project_spend_limit_exceeded"),
        ("anthropic", 429, "enforced_spend_limit_reached"),
        ("billing", 402, "billing_error"),
    ],
)
async def test_an_empty_account_is_reported_in_each_form(form: str, status: int, code: str) -> None:
    async with simulated() as model:
        model.order("quota", form=form)
        seen = await ask(model.url, OPENAI, chat(OPENAI))
    error = seen.json()["error"]
    assert seen.status == status
    assert code in (error.get("code"), error["type"], error.get("details", {}).get("error_code"))
    assert "retry-after" not in seen.headers


@EVERY
async def test_broken_answers(path: str, stream: bool) -> None:
    async with simulated() as model:
        seen = {}
        for fault in ("html:code=200", "html:code=502", "not_json", "empty", "truncated_json"):
            model.order(fault, times=1)
            seen[fault] = await ask(model.url, path, chat(path, stream=stream))
    assert {one.end for one in seen.values()} == {"complete"}
    assert [one.status for one in seen.values()] == [200, 502, 200, 200, 200]
    for fault in ("html:code=200", "html:code=502"):
        assert seen[fault].headers["content-type"].startswith("text/html")
        assert seen[fault].body.startswith(b"<!DOCTYPE html>")
    assert seen["empty"].body == b""
    for fault in ("not_json", "truncated_json"):
        assert seen[fault].body
        with pytest.raises(json.JSONDecodeError):
            seen[fault].lines() if stream else seen[fault].json()


@pytest.mark.parametrize("path", STREAMS)
async def test_error_line_comes_inside_a_stream_that_began_well(path: str) -> None:
    async with simulated() as model:
        model.order("error_line", after=2, message="model runner has unexpectedly stopped")
        seen = await ask(model.url, path, chat(path))
        whole = await ask(model.url, path, chat(path, stream=False))
    *before, last = seen.lines()
    assert (seen.status, seen.end, whole.status) == (200, "complete", 500)
    assert len(before) >= 2
    assert "unexpectedly stopped" in str(last["error"])
    assert "unexpectedly stopped" in str(whole.json()["error"])


@pytest.mark.parametrize(
    ("form", "prompt", "completion"),
    [
        ("negative", -12, -40),
        ("missing", None, None),
        ("absurd", 10**15, 10**15),
        ("strings", "many", "12"),
    ],
)
async def test_wrong_usage_has_impossible_counts(form: str, prompt: Any, completion: Any) -> None:
    async with simulated() as model:
        model.order("wrong_usage", form=form)
        ollama = (await ask(model.url, OLLAMA, chat())).lines()[-1]
        openai = (await ask(model.url, OPENAI, chat(OPENAI, stream=False))).json()
    assert (ollama.get("prompt_eval_count"), ollama.get("eval_count")) == (prompt, completion)
    usage = openai.get("usage", {})
    assert (usage.get("prompt_tokens"), usage.get("completion_tokens")) == (prompt, completion)


@pytest.mark.parametrize("stream", [True, False])
async def test_well_formed_answers_that_were_not_requested(stream: bool) -> None:
    async def both() -> tuple[dict[str, Any], dict[str, Any]]:
        seen = await ask(model.url, OLLAMA, chat(stream=stream))
        other = await ask(model.url, OPENAI, chat(OPENAI, stream=stream))
        if not stream:
            return seen.json(), other.json()["choices"][0]
        return seen.lines()[-1], other.lines()[-1]["choices"][0]

    async with simulated(tokens=20) as model:
        model.order("length")
        ollama, openai = await both()
        assert (ollama["done_reason"], ollama["eval_count"]) == ("length", 10)
        assert openai["finish_reason"] == "length"
        model.heal()
        model.order("refusal")
        ollama, openai = await both()
        assert ollama["done_reason"] == openai["finish_reason"] == "content_filter"
        if not stream:
            message = openai["message"]
            assert message["content"] is None
            assert "cannot help" in message["refusal"]
        model.heal()
        model.order("truncation")
        ollama, _ = await both()
        assert ollama["prompt_eval_count"] == (-(-len(PROMPT) // 4) + 4) // 2
        model.heal()
        model.order("remote_host")
        ollama, _ = await both()
        assert (ollama["remote_host"], ollama["remote_model"]) == ("https://ollama.com:443", "m")
        model.heal()
        model.order("empty", what="text")
        ollama, openai = await both()
        assert (ollama["done"], ollama["eval_count"]) == (True, 0)
        assert ollama["message"]["content"] == ""
        assert openai["finish_reason"] == "stop"


async def test_pictures_are_refused_by_an_error_or_missing() -> None:
    """G4: with OpenAI's error, or with status 200 and no picture."""
    async with simulated() as model:
        model.order("refusal", times=1, contains="bicycle")
        refused = await ask(model.url, IMAGES, chat(IMAGES))
        model.order("empty", what="text", times=1)
        none = await ask(model.url, IMAGES, chat(IMAGES))
        model.order("storm", form="seconds", after=3, times=1)
        busy = await ask(model.url, IMAGES, chat(IMAGES))
        model.order("status", code=500, times=1, path="images")
        broken = await ask(model.url, IMAGES, chat(IMAGES))
        assert (await ask(model.url, IMAGES, chat(IMAGES))).status == 200
    assert refused.status == 400
    assert refused.json()["error"]["code"] == "content_policy_violation"
    assert (none.status, none.json()["data"]) == (200, [])
    assert (busy.status, busy.headers["retry-after"]) == (429, "3")
    assert broken.status == 500


async def test_schema_invalid_is_json_of_another_shape() -> None:
    schema = {"type": "object", "properties": {"score": {"type": "integer"}}}
    async with simulated() as model:
        model.order("schema_invalid", times=1)
        wrong = (await ask(model.url, OLLAMA, chat(stream=False, format=schema))).json()
        right = (await ask(model.url, OLLAMA, chat(stream=False, format=schema))).json()
    assert list(json.loads(wrong["message"]["content"])) == ["unasked"]
    assert list(json.loads(right["message"]["content"])) == ["score"]


async def statuses(model: Model, calls: int, path: str = OLLAMA, **more: Any) -> list[int | None]:
    return [(await ask(model.url, path, chat(path, **more))).status for _ in range(calls)]


async def test_orders_can_be_limited() -> None:
    async with simulated(seed=5) as model:
        model.order("status", code=503, times=2)
        model.order("status", code=429, times=1)
        assert await statuses(model, 4) == [503, 503, 429, 200]
        model.order("status", path=OPENAI)
        assert await statuses(model, 1) == [200]
        assert await statuses(model, 1, OPENAI) == [500]
        model.heal()
        model.order("status", contains="poison")
        assert await statuses(model, 1) == [200]
        assert await statuses(model, 1, prompt="poison it") == [500]
        model.heal()
        model.order("status", match=lambda asked: asked.stream)
        assert await statuses(model, 1, stream=False) == [200]
        assert await statuses(model, 1, stream=True) == [500]
        model.heal()
        model.order("status", chance=0.5)
        by_chance = await statuses(model, 60)
        assert 15 <= by_chance.count(500) <= 45
        model.heal()
        model.order("status", seconds=0.2)
        began = time.monotonic()
        assert await statuses(model, 1) == [500]

        async def over() -> bool:
            return await statuses(model, 1) == [200]

        await eventually(over, "the order is over")
        assert time.monotonic() - began >= 0.2


async def test_a_fault_applies_to_other_calls_only_if_the_order_names_their_path() -> None:
    async with simulated() as model:
        model.order("status", times=1)
        assert (await ask(model.url, "/api/tags", method="GET")).status == 200
        assert await statuses(model, 1) == [500]
        model.order("status", path="/api/tags", times=1)
        assert (await ask(model.url, "/api/tags", method="GET")).status == 500
        model.order("reset", path="/api/version", times=1)
        assert (await ask(model.url, "/api/version", method="GET")).end == "reset"
        model.order("hang", path="/api/version", times=1)
        hung = await ask(model.url, "/api/version", method="GET", patience=SHORT)
        assert hung.end == "silence"


async def test_another_process_commands_it_over_http() -> None:
    async with simulated(control=0) as model:
        control = model.control_url
        assert control
        order = {"fault": "status", "code": 503, "times": 1, "retry_after": "4"}
        assert (await ask(control, "/_order", order)).json() == {"ok": True}
        report = (await ask(control, "/_calls", method="GET")).json()
        assert [one["fault"] for one in report["orders"]] == ["status"]
        seen = await ask(model.url, OLLAMA, chat())
        assert (seen.status, seen.headers["retry-after"]) == (503, "4")
        assert (await ask(model.url, "/_order", {"fault": "hang"})).status == 200
        assert (await ask(control, "/_heal")).status == 200
        assert await statuses(model, 1) == [200]
        for stop, start in (("/_stop", "/_start"), ("/_order", "/_heal")):
            assert (await ask(control, stop, {"fault": "refuse"})).status == 200
            with pytest.raises(ConnectionRefusedError):
                await ask(model.url, OLLAMA, chat())
            assert (await ask(control, start)).status == 200
            assert await statuses(model, 1) == [200]
        for wrong in ({}, {"fault": "nope"}, {"fault": "hang", "times": 0}, b"{no"):
            refused = await ask(control, "/_order", wrong)
            assert refused.status == 422
            assert refused.json()["error"]
        assert (await ask(control, "/_nope")).status == 404
        assert len(model.calls) == 4  # commands do not count as calls


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("nope", "fault is 'nope'; it may be refuse, hang"),
        ("status:cod=5", "status.cod is not known; it takes code, body"),
        ("status:code=x", "status.code is wrong"),
        ("storm:form=loud", "storm.form is wrong"),
        ("status:code", "parameters are written as NAME:key=value"),
        ("hang:times=0", "times must be 1 or more"),
        ("hang:times=x", "must be numbers"),
        ("hang:chance=2", "chance must be"),
        ("hang:seconds=soon", "seconds is 'soon'"),
        ("{no", "begins like JSON"),
    ],
)
def test_the_error_for_an_invalid_order_says_what_is_allowed(written: str, says: str) -> None:
    with pytest.raises(Invalid, match=re.escape(says)):
        order_written(written)


def test_every_fault_can_be_written_by_its_name() -> None:
    for name in FAULTS:
        assert order_written(name).fault.name == name
    order = order_written("storm:code=503,form=ms,times=3,chance=0.5,seconds=2m,path=/api")
    assert (order.times, order.chance, order.seconds, order.path) == (3, 0.5, 120, "/api")
    assert order.fault == Fault("storm", {"code": 503, "form": "ms", "after": 2})
    status = order_written('{"fault": "status", "headers": {"A": "b"}, "body": {"c": 1}}').fault
    given = {name: value for name, value in status.parameters.items() if value is not None}
    assert given == {"code": 500, "headers": {"A": "b"}, "body": {"c": 1}}
