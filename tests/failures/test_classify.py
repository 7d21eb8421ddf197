"""The table of error classes: each row, and each known answer of a provider."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.failures.classify import classify
from penstock.failures.verdict import CLASSES, Charge, Circuit, Fault
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal, address_of, from_body

BODIES = Path(__file__).parent / "bodies"

# `error.class` of the contract.
CONTRACT = [
    "timeout", "stalled", "rate_limited", "overloaded", "unavailable", "quota", "auth", "config",
    "input_too_long", "input_truncated", "refused", "invalid_request", "bad_output", "interrupted",
    "provider_error", "no_callback", "worker_lost", "bug", "cancelled", "expired",
]  # fmt: skip

MEANING = {
    "timeout": (Charge.FULL, Circuit.NONE),
    "stalled": (Charge.PROVISIONAL, Circuit.COUNTS),
    "rate_limited": (Charge.FREE, Circuit.PAUSES),
    "overloaded": (Charge.FREE, Circuit.OPENS),
    "unavailable": (Charge.FREE, Circuit.OPENS),
    "quota": (Charge.FREE, Circuit.STOPS),
    "auth": (Charge.FREE, Circuit.STOPS),
    "config": (Charge.FREE, Circuit.STOPS),
    "input_too_long": (Charge.FINAL, Circuit.NONE),
    "input_truncated": (Charge.FINAL, Circuit.NONE),
    "refused": (Charge.FINAL, Circuit.NONE),
    "invalid_request": (Charge.FINAL, Circuit.NONE),
    "bad_output": (Charge.FULL, Circuit.NONE),
    "interrupted": (Charge.PROVISIONAL, Circuit.COUNTS),
    "provider_error": (Charge.PROVISIONAL, Circuit.COUNTS),
    "no_callback": (Charge.FULL, Circuit.COUNTS),
    "worker_lost": (Charge.FULL, Circuit.NONE),
    "bug": (Charge.FULL, Circuit.NONE),
    "cancelled": (Charge.FINAL, Circuit.NONE),
    "expired": (Charge.FINAL, Circuit.NONE),
}


def test_the_classes_are_those_of_the_contract() -> None:
    assert list(CLASSES) == CONTRACT
    assert all(verdict.cls == name for name, verdict in CLASSES.items())


@pytest.mark.parametrize("name", CONTRACT)
def test_the_cost_of_a_class_and_its_effect_on_the_queue(name: str) -> None:
    """F5: a failure that is only the provider's fault never fails a job."""
    verdict = CLASSES[name]
    assert (verdict.charge, verdict.circuit) == MEANING[name]
    # A free failure has its own wait, or the job would be retried at once and for ever.
    assert (verdict.after is not None) == (verdict.charge is Charge.FREE)
    assert (verdict.address, verdict.status, verdict.code) == (None, None, None)


def test_each_class_has_its_fault() -> None:
    by_fault = {
        fault: [name for name, verdict in CLASSES.items() if verdict.fault is fault]
        for fault in Fault
    }
    assert by_fault[Fault.CREDENTIAL] == ["quota", "auth"]
    assert by_fault[Fault.CONFIG] == ["config"]
    assert by_fault[Fault.WORKER] == ["worker_lost"]


ROWS = [
    *[(Signal(exception=kind), "unavailable") for kind in ("connect", "dns", "tls")],
    (Signal(exception="connect_timeout"), "unavailable"),
    (Signal(status=502, message="connect() failed: Connection refused"), "unavailable"),
    (Signal(status=502), "overloaded"),
    (Signal(status=503, headers={"retry-after": "3"}), "overloaded"),
    (Signal(status=504), "overloaded"),
    (Signal(status=529), "overloaded"),
    (Signal(status=500, type="overloaded_error"), "overloaded"),
    (Signal(status=429), "rate_limited"),
    (Signal(status=400, code="rate_limit_exceeded"), "rate_limited"),
    (Signal(status=403, headers={"retry-after": "3"}), "rate_limited"),
    (Signal(status=429, message="Limit 6000, Requested 6000"), "rate_limited"),
    (Signal(status=429, message="Limit 6000, Requested 6001"), "input_too_long"),
    (Signal(status=429, message="Limit: 6,000 / Requested: 10,338"), "input_too_long"),
    (Signal(status=413, code="rate_limit_exceeded"), "input_too_long"),
    (Signal(status=429, message="You exceeded your current quota"), "quota"),
    (Signal(status=429, code="insufficient_quota"), "quota"),
    (Signal(status=429, type="insufficient_quota"), "quota"),
    (Signal(status=402), "quota"),
    (Signal(status=401), "auth"),
    (Signal(status=403), "auth"),
    (Signal(status=400, message="API key not valid."), "auth"),
    (Signal(status=404), "config"),
    (Signal(status=400, message="unsupported parameter: top_k"), "config"),
    (Signal(status=302), "config"),
    (Signal(status=301, exception="incomplete"), "config"),
    (Signal(exception="remote_host", status=200), "config"),
    (Signal(status=400, code="context_length_exceeded"), "input_too_long"),
    (Signal(status=400, type="exceed_context_size_error"), "input_too_long"),
    (Signal(status=500, message="the input length exceeds the context length"), "input_too_long"),
    (Signal(status=200, stop_reason="model_context_window_exceeded"), "input_too_long"),
    (Signal(status=200, exception="truncated_input"), "input_truncated"),
    (Signal(status=200, stop_reason="content_filter"), "refused"),
    (Signal(status=200, stop_reason="refusal"), "refused"),
    (Signal(status=400, code="content_policy_violation"), "refused"),
    *[(Signal(status=status), "invalid_request") for status in (400, 405, 413, 415, 418, 422)],
    *[(Signal(status=status), "provider_error") for status in (500, 501, 507, 520, 599)],
    (Signal(status=200, exception="incomplete", received=True), "interrupted"),
    (Signal(exception="reset", received=True), "interrupted"),
    (Signal(exception="reset"), "interrupted"),
    (Signal(status=503, exception="incomplete"), "overloaded"),
    (Signal(exception="first_token"), "stalled"),
    (Signal(status=200, exception="stall", received=True), "stalled"),
    (Signal(exception="read_timeout"), "stalled"),
    (Signal(status=524), "stalled"),
    (Signal(exception="deadline"), "timeout"),
    *[(Signal(status=200, exception=kind), "bad_output") for kind in ("empty", "bad_json")],
    (Signal(status=200, exception="schema"), "bad_output"),
    (Signal(status=200, stop_reason="length"), "bad_output"),
    (Signal(status=200, stop_reason="max_tokens", exception="bad_json"), "bad_output"),
    (Signal(exception="database"), "bug"),
    (Signal(), "bug"),
    (Signal(status=200, stop_reason="stop"), "bug"),
    (Signal(exception="something new"), "bug"),
    *[(Signal(status=status), "unavailable") for status in (521, 522, 523, 525, 526)],
    (Signal(status=400, message="filtered by the content management policy"), "refused"),
    (Signal(message="server busy", exception="incomplete"), "overloaded"),
    (Signal(status=500, message="the model is overloaded"), "overloaded"),
    (Signal(status=500, message="content policy"), "provider_error"),
    # Code before type before stop reason before status before message
    (Signal(status=401, code="slow_down", type="insufficient_quota"), "rate_limited"),
    (Signal(status=500, type="insufficient_quota", stop_reason="length"), "quota"),
    (Signal(status=401, stop_reason="refusal"), "refused"),
    (Signal(status=503, message="maximum context length"), "overloaded"),
]


@pytest.mark.parametrize(("signal", "cls"), ROWS, ids=lambda value: str(value)[:90])
def test_a_signal_has_its_class(signal: Signal, cls: str) -> None:
    verdict = classify(signal)
    assert verdict.cls == cls
    assert (verdict.charge, verdict.circuit, verdict.fault) == (
        CLASSES[cls].charge,
        CLASSES[cls].circuit,
        CLASSES[cls].fault,
    )
    assert classify(ProviderError("The model did not answer.", signal)) == verdict


WORDS = {
    "quota": "insufficient_quota credit_balance_exhausted organization_spend_limit_exceeded"
    " project_spend_limit_exceeded organization_usage_limit_exceeded enforced_spend_limit_reached"
    " billing_error billing_hard_limit_reached",
    "auth": "invalid_api_key authentication_error permission_error",
    "input_too_long": "context_length_exceeded exceed_context_size_error",
    "refused": "content_filter content_policy_violation ResponsibleAIPolicyViolation",
    "config": "model_not_found unsupported_parameter DeploymentNotFound",
    "rate_limited": "rate_limit_exceeded rate_limit_error slow_down",
    "overloaded": "overloaded_error unavailable_error capacity_exceeded",
}


@pytest.mark.parametrize(
    ("word", "cls"), [(word, cls) for cls, words in WORDS.items() for word in words.split()]
)
def test_a_providers_code_decides_for_any_status(word: str, cls: str) -> None:
    for status in (None, 200, 400, 404, 429, 500, 503):
        assert classify(Signal(status=status, code=word, type="other")).cls == cls
        assert classify(Signal(status=status, code="other", type=word)).cls == cls
    assert classify(Signal(code=f"{word}_not")).cls == "bug"


@pytest.mark.parametrize(
    "signal",
    [*[Signal(status=status) for status in (408, 409, 425, 499)], Signal(exception="pool")],
)
def test_a_passing_obstacle_is_free_and_does_not_count_for_the_circuit(signal: Signal) -> None:
    verdict = classify(signal)
    assert (verdict.cls, verdict.charge, verdict.circuit) == (
        "unavailable",
        Charge.FREE,
        Circuit.NONE,
    )


# File: class, and the wait if it is not the class's own.
ANSWERS: dict[str, tuple[str, float | None]] = {
    "openai-400-context": ("input_too_long", None),
    "openai-400-policy": ("refused", None),
    "openai-400-parameter": ("config", None),
    "openai-400-invalid": ("invalid_request", None),
    "openai-401-key": ("auth", None),
    "openai-403-region": ("auth", None),
    "openai-404-model": ("config", None),
    "openai-429-rate": ("rate_limited", 1.4),
    "openai-429-slow-down": ("rate_limited", 20),
    "openai-429-too-big": ("input_too_long", None),
    "openai-429-quota": ("quota", None),
    "openai-429-spend": ("quota", None),
    "openai-429-credit": ("quota", None),
    "openai-429-usage": ("quota", None),
    "openai-500-server": ("provider_error", None),
    "openai-503-overloaded": ("overloaded", 7),
    "anthropic-400-long": ("input_too_long", None),
    "anthropic-400-invalid": ("invalid_request", None),
    "anthropic-400-credit": ("quota", None),
    "anthropic-400-spend": ("quota", None),
    "anthropic-401-key": ("auth", None),
    "anthropic-402-billing": ("quota", None),
    "anthropic-403-permission": ("auth", None),
    "anthropic-404-model": ("config", None),
    "anthropic-409-conflict": ("unavailable", None),
    "anthropic-413-large": ("invalid_request", None),
    "anthropic-429-rate": ("rate_limited", 12),
    "anthropic-429-rate-reset": ("rate_limited", 40),
    "anthropic-429-spend": ("quota", None),
    "anthropic-500-api": ("provider_error", None),
    "anthropic-504-deadline": ("overloaded", None),
    "anthropic-529-overloaded": ("overloaded", None),
    "anthropic-200-overloaded": ("overloaded", None),
    "ollama-400-context": ("input_too_long", None),
    "ollama-400-tools": ("config", None),
    "ollama-400-invalid": ("invalid_request", None),
    "ollama-404-model": ("config", None),
    "ollama-499-gone": ("unavailable", None),
    "ollama-500-runner": ("provider_error", None),
    "ollama-502-cloud": ("unavailable", None),
    "ollama-503-busy": ("overloaded", None),
    "vllm-400-context": ("input_too_long", None),
    "vllm-400-context-nested": ("input_too_long", None),
    "vllm-404-model": ("config", None),
    "vllm-500-internal": ("provider_error", None),
    "vllm-503-queue": ("overloaded", None),
    "llamacpp-400-context": ("input_too_long", None),
    "llamacpp-401-key": ("auth", None),
    "llamacpp-503-loading": ("overloaded", None),
    "llamacpp-500-server": ("provider_error", None),
    "groq-413-too-big": ("input_too_long", None),
    "groq-429-rate": ("rate_limited", 2),
    "groq-498-capacity": ("overloaded", None),
    "problem-422-invalid": ("invalid_request", None),
    "problem-429-rate": ("rate_limited", 30),
    "problem-402-credits": ("quota", None),
    "problem-503-blank": ("overloaded", None),
    "proxy-502-nginx": ("overloaded", None),
    "proxy-502-no-upstream": ("unavailable", None),
    "proxy-503-envoy": ("unavailable", None),
    "proxy-503-haproxy": ("unavailable", None),
    "proxy-504-nginx": ("overloaded", None),
    "proxy-413-nginx": ("invalid_request", None),
    "proxy-524-cloudflare": ("stalled", None),
    "proxy-301-moved": ("config", None),
}


def test_every_recorded_answer_is_in_the_table() -> None:
    assert {path.stem for path in BODIES.glob("*.json")} == set(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_has_its_class(name: str) -> None:
    recorded = json.loads((BODIES / f"{name}.json").read_text())
    body = recorded["body"]
    text = body if isinstance(body, str) else json.dumps(body)
    signal = from_body(recorded["status"], recorded["headers"], text.encode(), "model:80")
    assert from_body(recorded["status"], recorded["headers"], text, "model:80") == signal
    verdict = classify(signal)
    cls, seconds = ANSWERS[name]
    after = CLASSES[cls].after if seconds is None else timedelta(seconds=seconds)
    assert (verdict.cls, verdict.after) == (cls, after)
    assert (verdict.status, verdict.address) == (recorded["status"], "model:80")
    assert verdict.code is None or re.fullmatch(r"[A-Za-z_.:-]+", verdict.code)


def test_the_code_is_the_providers_own_and_never_a_sentence() -> None:
    spend = json.loads((BODIES / "anthropic-429-spend.json").read_text())
    assert classify(from_body(429, {}, json.dumps(spend["body"]))).code == (
        "enforced_spend_limit_reached"
    )
    assert classify(Signal(status=400, type="invalid_request_error")).code == (
        "invalid_request_error"
    )
    assert classify(Signal(status=400, code="the essay of Anna was too long")).code is None


def test_an_error_inside_a_stream_has_its_own_status() -> None:
    line = '{"error": {"code": 429, "message": "slow"}}'
    assert classify(replace(from_body(200, {}, line), exception="incomplete")).cls == "rate_limited"
    line = '{"error": {"code": 500, "message": "broken"}}'
    assert classify(replace(from_body(200, {}, line), exception="incomplete")).cls == "interrupted"


@pytest.mark.parametrize(
    "body",
    [
        "", "null", "[]", "[[]]", "7", '"text"', "{}", '{"error": null}', '{"error": []}',
        '{"error": {"code": [], "type": {}, "message": 7}}', '{"error": {"details": 3}}',
        "[" * 5_000, '{"error": {"code": ' + "9" * 5_000 + "}}", "<" * 5_000, "\x00",
        b"\xff\xfe", b"{\xff}", "x" * 2_000_000,
    ],
    ids=lambda body: repr(body)[:20],
)  # fmt: skip
def test_any_body_can_be_parsed(body: str | bytes) -> None:
    assert classify(from_body(500, {}, body)).cls == "provider_error"
    assert classify(from_body(400, None, body)).cls == "invalid_request"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://localhost:11434/api/chat", "localhost:11434"),
        ("https://api.example.org/v1?key=secret", "api.example.org:443"),
        ("http://user:password@host/path", "host:80"),
        ("http://[::1]:8000/", "[::1]:8000"),
        ("http://host:99999/", None),
        ("http://[broken/", None),
        ("unix:///run/model.sock", None),
        ("/relative", None),
        (None, None),
    ],
)
def test_an_address_is_host_and_port_and_nothing_else(url: str | None, address: str | None) -> None:
    assert address_of(url) == address
