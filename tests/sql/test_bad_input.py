"""Invalid input is refused: with a code and a field, a sentence for people, and without a trace."""

import json
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from support import factory
from support.factory import refused

MEGABYTE = 1024 * 1024


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = [value]
    return value


# The error: the arguments, then status, code and field of the refusal.
BAD: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "unknown kind": ({"kind": "nope"}, 404, "unknown_kind", "kind"),
    "no kind": ({"kind": None}, 422, "invalid_job", "kind"),
    "no payload": ({"payload": None}, 422, "invalid_payload", "payload"),
    "payload is an array": ({"payload": [1]}, 422, "invalid_payload", "payload"),
    "payload is a text": ({"payload": "text"}, 422, "invalid_payload", "payload"),
    "payload is a number": ({"payload": 5}, 422, "invalid_payload", "payload"),
    "payload too large": (
        {"payload": {"a": "x" * MEGABYTE}},
        413,
        "payload_too_large",
        "payload",
    ),
    "payload too large in bytes": (
        {"payload": {"a": "ü" * (MEGABYTE // 2)}},
        413,
        "payload_too_large",
        "payload",
    ),
    "payload too deep": ({"payload": {"a": nested(64)}}, 422, "invalid_payload", "payload"),
    "payload far too deep": ({"payload": {"a": nested(900)}}, 422, "invalid_payload", "payload"),
    "payload with too many keys": (
        {"payload": {"k": [{"a": 1, "b": 2}] * 10_000}},
        422,
        "invalid_payload",
        "payload",
    ),
    "long integer": ({"payload": {"n": int("9" * 301)}}, 422, "invalid_payload", "payload"),
    "priority too high": ({"priority": 1001}, 422, "invalid_job", "priority"),
    "priority too low": ({"priority": -1001}, 422, "invalid_job", "priority"),
    "negative delay": ({"delay_seconds": -1}, 422, "invalid_job", "delay_seconds"),
    "endless delay": ({"delay_seconds": 1e15}, 422, "invalid_job", "delay_seconds"),
    "no time at all": ({"timeout_seconds": 0}, 422, "invalid_job", "timeout_seconds"),
    "endless time": ({"timeout_seconds": 1e15}, 422, "invalid_job", "timeout_seconds"),
    "expires at once": ({"expires_seconds": 0}, 422, "invalid_job", "expires_seconds"),
    "no attempts": ({"max_attempts": 0}, 422, "invalid_job", "max_attempts"),
    "too many attempts": ({"max_attempts": 1001}, 422, "invalid_job", "max_attempts"),
    "empty dedupe key": ({"dedupe_key": ""}, 422, "invalid_job", "dedupe_key"),
    "long dedupe key": ({"dedupe_key": "k" * 501}, 422, "invalid_job", "dedupe_key"),
    "empty topic": ({"topic": ""}, 422, "invalid_job", "topic"),
    "long topic": ({"topic": "t" * 501}, 422, "invalid_job", "topic"),
    "empty account": ({"account": ""}, 422, "invalid_job", "account"),
    "long account": ({"account": "a" * 201}, 422, "invalid_job", "account"),
    "long account in the payload": (
        {"kind": "fields", "payload": {"a": "a" * 201}},
        422,
        "invalid_job",
        "account",
    ),
    "empty key in the payload": (
        {"kind": "fields", "payload": {"d": ""}},
        422,
        "invalid_job",
        "dedupe_key",
    ),
    "long key in the payload": (
        {"kind": "fields", "payload": {"d": "k" * 9000}},
        422,
        "invalid_job",
        "dedupe_key",
    ),
    "long topic in the payload": (
        {"kind": "fields", "payload": {"t": "t" * 9000}},
        422,
        "invalid_job",
        "topic",
    ),
    "metadata is an array": ({"metadata": [1]}, 422, "invalid_job", "metadata"),
    "metadata too large": ({"metadata": {"m": "x" * 16384}}, 422, "invalid_job", "metadata"),
    "metadata too deep": ({"metadata": {"m": nested(64)}}, 422, "invalid_job", "metadata"),
    "long number in metadata": (
        {"metadata": {"m": int("9" * 301)}},
        422,
        "invalid_job",
        "metadata",
    ),
}


@pytest.fixture
async def ready(conn: asyncpg.Connection) -> asyncpg.Connection:
    await factory.queue(conn)
    fields = {"account_field": "a", "dedupe_field": "d", "topic_field": "t"}
    await conn.execute("select penstock.declare_kind('fields', 'q', $1)", fields)
    return conn


async def submit_job(conn: asyncpg.Connection, **arguments: Any) -> Any:
    named = {"kind": "q", "payload": {}} | arguments
    call = ", ".join(f"{name} => ${n}" for n, name in enumerate(named, 1))
    return await conn.fetchval(f"select penstock.submit_job({call})", *named.values())


@pytest.mark.parametrize("wrong", BAD)
async def test_an_invalid_job_is_refused_with_its_field_and_leaves_no_trace(
    ready: asyncpg.Connection, wrong: str
) -> None:
    """All fields are validated, for every caller."""
    arguments, status, code, field = BAD[wrong]
    before = await factory.contents(ready)
    with refused(status, code, field) as refusal:
        await submit_job(ready, **arguments)
    # A sentence with the name of the field, and never the value itself.
    assert 10 < len(refusal["message"]) < 200
    assert field in refusal["message"]
    assert "x" * 50 not in refusal["message"]

    # The same in a batch, where the refusal also has the index of the job.
    good = {"kind": "q", "payload": {}}
    with refused(status, code, field) as refusal:
        await factory.submit_rows(ready, [good, good | arguments, good])
    assert refusal["index"] == 1
    assert await factory.contents(ready) == before


async def test_values_just_within_the_bounds_are_accepted(ready: asyncpg.Connection) -> None:
    longest = {
        "payload": {
            "deep": nested(62),
            "number": int("9" * 300),
            "keys": [{"a": 1, "b": 2}] * 9_000,
            "brackets": "[{" * 5_000 + '"\\',
            "colons": ":" * 30_000,
            "digits": "7" * 5_000,
        },
        "priority": -1000,
        "max_attempts": 1000,
        "dedupe_key": "ü" * 500,
        "topic": "😀" * 500,
        "account": "😀" * 200,
        "metadata": {"m": "x" * 16_000},
        "timeout_seconds": 315_360_000,
        "expires_seconds": 0.001,
        "delay_seconds": 315_360_000,
    }
    job = await submit_job(ready, **longest)
    stored = await ready.fetchval("select payload from penstock.job")
    assert stored == longest["payload"]
    assert (job["topic"], job["account"]) == (longest["topic"], longest["account"])


@pytest.mark.parametrize("number", ["1e131000", "1e-16000", "-1e400", "0." + "1" * 400])
async def test_a_number_with_too_many_digits_is_refused(
    ready: asyncpg.Connection, number: str
) -> None:
    """jsonb would accept it; the JSON parsers of readers would fail."""
    before = await factory.contents(ready)
    for column, code in (("payload", "invalid_payload"), ("metadata", "invalid_job")):
        rest = "" if column == "payload" else ", payload => '{}'"
        with refused(422, code, column):
            await ready.execute(
                f"select penstock.submit_job('q', {column} => '{{\"n\": {number}}}'::jsonb{rest})"
            )
    assert await factory.contents(ready) == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("delay_seconds", "'NaN'::float8"),
        ("delay_seconds", "'Infinity'::float8"),
        ("timeout_seconds", "'-Infinity'::float8"),
        ("expires_seconds", "1e300"),
        ("run_at", "'infinity'::timestamptz"),
        ("run_at", "'-infinity'::timestamptz"),
        ("run_at", "'9999-01-01'::timestamptz"),
        ("run_at", "'2030-01-01'::timestamptz, delay_seconds => 5"),
    ],
)
async def test_invalid_times_and_durations_are_refused(
    ready: asyncpg.Connection, field: str, value: str
) -> None:
    before = await factory.contents(ready)
    with refused(422, "invalid_job", field):
        await ready.execute(f"select penstock.submit_job('q', '{{}}', {field} => {value})")
    assert await factory.contents(ready) == before


@pytest.mark.parametrize(
    ("job", "code", "field"),
    [
        ({"prioritty": 1}, "unknown_option", "prioritty"),
        ({"priority": "high"}, "invalid_job", "priority"),
        ({"priority": 1.5}, "invalid_job", "priority"),
        ({"delay_seconds": "5m"}, "invalid_job", "delay_seconds"),
        ({"timeout_seconds": True}, "invalid_job", "timeout_seconds"),
        ({"max_attempts": [3]}, "invalid_job", "max_attempts"),
        ({"run_at": "tomorrow noonish"}, "invalid_job", "run_at"),
        ({"run_at": "infinity"}, "invalid_job", "run_at"),
        ({"run_at": {"at": 1}}, "invalid_job", "run_at"),
        ({"metadata": "m"}, "invalid_job", "metadata"),
        ({"kind": {"k": 1}}, "invalid_job", "kind"),
        ({"account": 5}, "invalid_job", "account"),
        ({"dedupe_key": ["k"]}, "invalid_job", "dedupe_key"),
        ({"topic": False}, "invalid_job", "topic"),
    ],
)
async def test_a_batch_in_json_names_the_field_of_the_wrong_type(
    ready: asyncpg.Connection, job: dict[str, Any], code: str, field: str
) -> None:
    before = await factory.contents(ready)
    with refused(422, code, field) as refusal:
        await factory.submit_rows(ready, [{"kind": "q"}, {"kind": "q"} | job])
    assert refusal["index"] == 1
    assert await factory.contents(ready) == before


async def test_a_batch_must_be_an_array_of_jobs(ready: asyncpg.Connection) -> None:
    before = await factory.contents(ready)
    jobs: Any
    for jobs in (None, [], {}, "jobs"):
        with refused(422, "invalid_job", "jobs"):
            await ready.execute("select penstock.submit_jobs($1)", jobs)
    for jobs in ([5], [None], [[]]):
        with refused(422, "invalid_job", "jobs") as refusal:
            await ready.execute("select penstock.submit_jobs($1)", jobs)
        assert refusal["index"] == 0
    with refused(422, "invalid_payload", "payload"):
        await ready.execute("select penstock.submit_many(array['q', 'q'], array['{}'::jsonb])")
    await ready.execute("update penstock.setting set batch_max_jobs = 2")
    with refused(413, "batch_too_large", "jobs"):
        await factory.submit_rows(ready, [{"kind": "q"}] * 3)
    await ready.execute("update penstock.setting set batch_max_jobs = default")
    assert await factory.contents(ready) == before


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_an_odd_idempotency_key_is_refused(ready: asyncpg.Connection, key: str) -> None:
    before = await factory.contents(ready)
    with refused(422, "invalid_job", "idempotency_key"):
        await submit_job(ready, idempotency_key=key)
    assert await factory.contents(ready) == before


@pytest.mark.parametrize(
    ("name", "lease", "field"),
    [("", "15s", "name"), ("w" * 201, "15s", "name"), ("w", "0s", "lease"), ("w", None, "lease")],
)
async def test_an_odd_worker_is_refused(
    ready: asyncpg.Connection, name: str, lease: str | None, field: str
) -> None:
    with refused(422, "invalid_worker", field):
        await ready.execute("select penstock.register_worker($1, $2::text::interval)", name, lease)


async def test_text_that_tries_to_be_sql_is_only_text(ready: asyncpg.Connection) -> None:
    """No SQL is made from a caller's text."""
    evil = "'; drop table penstock.job; --"
    job = await submit_job(
        ready, payload={evil: evil}, account=evil, topic=evil, dedupe_key=evil, metadata={evil: 1}
    )
    assert (job["account"], job["topic"]) == (evil, evil)
    assert await ready.fetchval("select payload from penstock.job") == {evil: evil}
    with refused(404, "unknown_kind", "kind"):
        await submit_job(ready, kind=evil)
    assert json.dumps(job)
    assert isinstance(datetime.fromisoformat(job["created_at"]), datetime)
