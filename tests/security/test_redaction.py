"""Keys and passwords are removed from texts, in Python and in SQL, and nothing else is."""

import time

import asyncpg
import pytest

from penstock import Cancel, Fail, Retry
from penstock.engine.jobs.attempts import columns
from penstock.failures.outcome import MESSAGE_MAX, clean
from penstock.models.handlers.exceptions import outcome_of
from penstock.security.redaction import redact
from penstock.security.secret import Secret

A, B = "q7Rt2mXw9", "Zk4Lp8Vn3"
KEY = A + B
# Assembled here, so that this file contains no text in the form of a key.
KEYS = [
    f"sk-{KEY}",
    f"sk-proj-{A}_{B}-{A}",
    f"sk-ant-api03-{A}-{B}",
    f"sk-or-v1-{KEY}",
    "sk-proj-" + "*" * 40 + "wXyZ",
    f"sk_live_{KEY}",
    f"rk_test_{KEY}",
    "AKIA" + "Q7RT2MXW9ZK4LP8V",
    f"AIza{KEY}{KEY}",
    f"ya29.{KEY}",
    f"ghp_{KEY}",
    f"github_pat_{A}_{B}",
    f"glpat-{KEY}",
    f"xoxb-123-{KEY}",
    f"hf_{KEY}",
    f"gsk_{KEY}",
    f"r8_{KEY}",
    f"xai-{KEY}",
    f"whsec_{KEY}+/=",
    f"ps_app_4f8kd02mxyzn_{KEY}",
    f"pt_{KEY}.{KEY}",
    f"eyJhbGciOiJIUzI1NiJ9.eyJ{KEY}.{KEY}",
]
AROUND = [
    "Incorrect API key provided: {}. You can find yours at https://h/keys",
    "{}",
    "RuntimeError({!r})",
    "a,{},b",
    "first line\n{}\nlast",
    r"'first line\n{}'",
    "%20{}%20",
    "<{}>",
]
TEXTS = [
    (f"Authorization: Bearer {KEY}", "Authorization: [redacted]"),
    (f"{{'authorization': 'Bearer {KEY}'}}", "{'authorization': '[redacted]'}"),
    (f"x-api-key: {KEY}\nnext", "x-api-key: [redacted]\nnext"),
    (f"Cookie: a=1; session={KEY}", "Cookie: [redacted]"),
    (f"sent Bearer {KEY} to it", "sent Bearer [redacted] to it"),
    ("Basic dXNlcjpwYXNzd29yZA== was refused", "Basic [redacted] was refused"),
    ("password=hunter2 host=h", "password=[redacted] host=h"),
    ('password = "correct horse"', "password = [redacted]"),
    ("{'password': 'correct horse', 'user': 'u'}", "{'password': [redacted], 'user': 'u'}"),
    ('{"api_key": "abc", "n": 1}', '{"api_key": [redacted], "n": 1}'),
    (f"api-key: {KEY}, please", "api-key: [redacted], please"),
    ("OPENAI_API_KEY=abc", "OPENAI_API_KEY=[redacted]"),
    (f"aws_secret_access_key={A}/{B}", "aws_secret_access_key=[redacted]"),
    ("client_secret='abc'", "client_secret=[redacted]"),
    (f"Client(token={KEY}, retries=3)", "Client(token=[redacted], retries=3)"),
    ("DB_PASS=hunter2", "DB_PASS=[redacted]"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- x", "[redacted] x"),
    ("-----BEGIN PRIVATE KEY-----\nMIIE", "[redacted]"),
]
# In Python an address loses more than its password: see test_url_redaction.py.
ADDRESSES = [
    ("postgresql://u:pa@ss@h/db", "postgresql://[redacted]@h/db"),
    ("https://h/p?key=abc&x=1", "https://h/p?key=[redacted]&x=1"),
]
UNTOUCHED = [
    "",
    "ValueError: the picture is too small",
    "a task-force of risk-averse people at the desk-top",
    "Basic authentication is required, or a bearer token",
    "Unexpected token '<' at position 3",
    "invalid token: unexpected end of input",
    "max_tokens=500, prompt_tokens: 17",
    "password: must be longer",
    "the model gpt-4o-mini-2024-07-18 is not there",
    "job 0199c2f0-7c1e-7b3a-9d52-5f7a3c1e8b44 of account u1",
    "KeyError: 'answer'",
    "encompass=3, bypass: 12345678",
    "https://h:8080/a/b?page=2",
]
# Each nearly matches at many positions.
HOSTILE = [
    "sk-",
    "eyJ.",
    "eyJa",
    "Bearer a",
    "bearer " + "a" * 90 + " ",
    "token:" + "a" * 90 + " ",
    "token='",
    'token="',
    "token=",
    "secretsecret",
    "password : ",
    "://",
    "://a",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN " + "A " * 20,
    "authorization:",
    "%20%20",
    "\\n\\r",
    " ",
]


async def both(conn: asyncpg.Connection, text: str) -> str:
    """Return the redacted text, which is the same from Python and SQL."""
    made = redact(text)
    assert await conn.fetchval("select penstock._redacted($1)", text) == made
    return made


@pytest.mark.parametrize("key", KEYS)
async def test_a_key_of_a_known_format_is_removed(conn: asyncpg.Connection, key: str) -> None:
    for around in AROUND:
        text = around.format(key)
        made = await both(conn, text)
        assert A not in made, made
        assert B not in made, made
        assert "[redacted]" in made
        head, _, tail = around.partition("{")
        assert made.startswith(head), made
        assert made.endswith(tail.partition("}")[2]), made


@pytest.mark.parametrize(("text", "kept"), TEXTS + ADDRESSES)
async def test_a_value_named_as_a_secret_is_removed(
    conn: asyncpg.Connection, text: str, kept: str
) -> None:
    assert await both(conn, text) == kept
    assert await both(conn, kept) == kept


@pytest.mark.parametrize("text", UNTOUCHED)
async def test_a_text_without_secrets_is_not_changed(conn: asyncpg.Connection, text: str) -> None:
    assert await both(conn, text) == text


def test_a_secret_from_the_environment_is_removed_while_it_is_in_use() -> None:
    """In any format."""
    text = "refused: custom_1234 and Basic b64value1, b64value1"
    values = [Secret("custom_1234"), Secret("Basic b64value1"), Secret("and")]
    assert redact(text) == "refused: [redacted] and [redacted], [redacted]"
    values.clear()
    assert redact(text) != "refused: [redacted] and [redacted], [redacted]"
    assert "custom_1234" in redact(text)


def test_any_error_of_a_handler_is_stored_without_keys() -> None:
    """Before it is sent anywhere: the app's on_finish callback gets the same message."""
    for error in (RuntimeError(KEYS[0]), Fail(KEYS[0]), Retry(KEYS[0]), Cancel(KEYS[0])):
        row_error = columns(outcome_of(error))[2]
        assert row_error is not None
        assert A not in row_error["message"]


@pytest.mark.parametrize("piece", HOSTILE)
async def test_redaction_of_a_hostile_text_is_fast(conn: asyncpg.Connection, piece: str) -> None:
    """An outside function may send any text. The best of three, on a machine with other work."""
    text = (piece * (1_000_000 // len(piece)))[:1_000_000]
    spent = []
    for _ in range(3):
        begun = time.process_time()
        assert len(clean(text)) <= MESSAGE_MAX
        spent.append(time.process_time() - begun)
    assert min(spent) < 0.25
    sql = "select penstock._plain_error(jsonb_build_object('message', $1::text)) ->> 'message'"
    await conn.execute("set statement_timeout = '5s'")
    assert len(await conn.fetchval(sql, text)) <= 45_000
