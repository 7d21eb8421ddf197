"""The exceptions of real libraries, with a real socket, have the right class."""

import json
from datetime import timedelta

import pytest

from penstock.failures.classify import classify
from penstock.failures.verdict import CLASSES, Charge, Circuit, Verdict
from support.models.answering import Then, answer, answering, closed_port, recorded
from support.models.callers import CALLERS, PATIENCE, by_anthropic, by_ollama, by_openai

every_library = pytest.mark.parametrize("library", CALLERS)

# These keep the status and the headers of an answer, but not the body.
WITHOUT_BODY = {"aiohttp", "urllib"}
SHORT = 0.2  # seconds for an answer that never comes


async def verdict_of(library: str, data: bytes, then: Then = "close") -> tuple[Verdict, int]:
    async with answering(data, then) as port:
        patience = SHORT if then == "hang" else PATIENCE
        return await verdict_at(library, f"http://127.0.0.1:{port}", patience), port


async def verdict_at(library: str, base: str, patience: float = PATIENCE) -> Verdict:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # each has its own, that is the point
        await CALLERS[library](base, patience)
    return classify(caught.value)


@every_library
async def test_a_refused_connection(library: str) -> None:
    port = closed_port()
    verdict = await verdict_at(library, f"http://127.0.0.1:{port}")
    assert (verdict.cls, verdict.charge, verdict.circuit) == (
        "unavailable",
        Charge.FREE,
        Circuit.OPENS,
    )
    assert verdict.address == f"127.0.0.1:{port}"


@every_library
async def test_an_unknown_name(library: str) -> None:
    verdict = await verdict_at(library, "http://model.invalid:11434")
    assert (verdict.cls, verdict.charge) == ("unavailable", Charge.FREE)


@every_library
async def test_a_server_without_tls(library: str) -> None:
    async with answering(b"plain\r\n\r\n") as port:
        verdict = await verdict_at(library, f"https://127.0.0.1:{port}")
    assert verdict.cls == "unavailable"


@every_library
@pytest.mark.parametrize("then", ["close", "reset"])
async def test_the_server_disconnects_before_the_first_byte(library: str, then: Then) -> None:
    """Not free: a prompt that crashes the model always has this effect."""
    verdict, _ = await verdict_of(library, b"", then)
    assert verdict.cls == "interrupted"


@every_library
@pytest.mark.parametrize("then", ["close", "reset"])
async def test_the_server_disconnects_in_the_middle(library: str, then: Then) -> None:
    data = answer(200, {"content-type": "application/json"}, '{"id": "x', missing=100)
    verdict, _ = await verdict_of(library, data, then)
    assert verdict.cls == "interrupted"


@every_library
@pytest.mark.parametrize("begun", [False, True])
async def test_the_server_stops_sending(library: str, begun: bool) -> None:
    data = answer(200, {"content-type": "application/json"}, '{"id": "x', missing=100)
    verdict, _ = await verdict_of(library, data if begun else b"", "hang")
    # urllib's is Python's own TimeoutError, as is that of a handler's `asyncio.timeout`.
    assert verdict.cls == ("timeout" if library == "urllib" else "stalled")


@every_library
@pytest.mark.parametrize(
    ("name", "cls", "after"),
    [
        ("openai-429-slow-down", "rate_limited", 20),
        ("openai-429-rate", "rate_limited", 1.4),
        ("anthropic-429-rate-reset", "rate_limited", 40),
        ("openai-401-key", "auth", 30),
        ("anthropic-402-billing", "quota", 30),
        ("openai-404-model", "config", 60),
        ("vllm-500-internal", "provider_error", None),
        ("openai-503-overloaded", "overloaded", 7),
        ("anthropic-529-overloaded", "overloaded", 1),
        ("proxy-504-nginx", "overloaded", 1),
        ("proxy-413-nginx", "invalid_request", None),
    ],
)
async def test_an_answer_classified_by_its_status(
    library: str, name: str, cls: str, after: float | None
) -> None:
    verdict, port = await verdict_of(library, recorded(name))
    assert verdict.cls == cls
    assert (verdict.charge, verdict.circuit) == (CLASSES[cls].charge, CLASSES[cls].circuit)
    assert verdict.status == int(name.split("-")[1])
    if library == "ollama":
        return  # keeps only the text and the status
    assert verdict.after == (None if after is None else timedelta(seconds=after))
    assert verdict.address == f"127.0.0.1:{port}"


@every_library
@pytest.mark.parametrize(
    ("name", "cls", "blind"),
    [
        ("openai-429-quota", "quota", "rate_limited"),
        ("anthropic-429-spend", "quota", "rate_limited"),
        ("openai-429-too-big", "input_too_long", "rate_limited"),
        ("anthropic-400-credit", "quota", "invalid_request"),
        ("llamacpp-400-context", "input_too_long", "invalid_request"),
        ("vllm-400-context", "input_too_long", "invalid_request"),
        ("ollama-400-context", "input_too_long", "invalid_request"),
        ("proxy-503-envoy", "unavailable", "overloaded"),
    ],
)
async def test_an_answer_classified_by_its_body(
    library: str, name: str, cls: str, blind: str
) -> None:
    verdict, _ = await verdict_of(library, recorded(name))
    assert verdict.cls == (blind if library in WITHOUT_BODY else cls)


EVENTS = {"content-type": "text/event-stream"}
LINES = {"content-type": "application/x-ndjson"}


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        ({"message": "broken", "type": "server_error", "code": None}, "interrupted"),
        ({"message": "slow", "type": "requests", "code": "rate_limit_exceeded"}, "rate_limited"),
    ],
)
async def test_openai_has_an_error_in_its_stream(error: object, cls: str) -> None:
    body = f"data: {json.dumps({'error': error})}\n\n"
    async with answering(answer(200, EVENTS, body)) as port:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await by_openai(f"http://127.0.0.1:{port}", stream=True)
    verdict = classify(caught.value)
    assert (verdict.cls, verdict.address) == (cls, f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("kind", "cls"), [("api_error", "interrupted"), ("overloaded_error", "overloaded")]
)
async def test_anthropic_has_an_error_in_its_stream(kind: str, cls: str) -> None:
    error = {"type": "error", "error": {"type": kind, "message": "so it is"}}
    body = f"event: error\ndata: {json.dumps(error)}\n\n"
    async with answering(answer(200, EVENTS, body)) as port:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await by_anthropic(f"http://127.0.0.1:{port}", stream=True)
    assert classify(caught.value).cls == cls


@pytest.mark.parametrize(
    ("words", "cls"),
    [
        ("an error was encountered while running the model: unexpected EOF", "interrupted"),
        ("the input length exceeds the context length", "input_too_long"),
    ],
)
async def test_ollama_has_an_error_in_its_stream(words: str, cls: str) -> None:
    body = json.dumps({"error": words}) + "\n"
    async with answering(answer(200, LINES, body)) as port:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await by_ollama(f"http://127.0.0.1:{port}", stream=True)
    assert getattr(caught.value, "status_code", None) == -1
    assert classify(caught.value).cls == cls


@pytest.mark.parametrize("stream", [by_openai, by_anthropic, by_ollama])
@pytest.mark.parametrize(("then", "cls"), [("close", "interrupted"), ("hang", "stalled")])
async def test_a_stream_that_breaks_off(stream: object, then: Then, cls: str) -> None:
    assert callable(stream)
    async with answering(answer(200, EVENTS, "", missing=50), then) as port:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await stream(f"http://127.0.0.1:{port}", SHORT if then == "hang" else 20, stream=True)
    assert classify(caught.value).cls == cls
