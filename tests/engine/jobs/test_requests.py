"""Mistakes of a caller in Python, refused before or by the database, always by name."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from penstock.engine.engine import Engine
from penstock.engine.jobs.attempts import Error as Oops
from penstock.engine.jobs.attempts import Failed, Snoozed, Succeeded
from penstock.engine.jobs.jobs import NewJob
from penstock.errors import Invalid, NotFound, Refused, TooLarge
from support import factory

NUL, HALF = "a\x00b", "a\ud800"

BAD: dict[str, tuple[dict[str, Any], type[Refused], str, str]] = {
    "unknown kind": ({"kind": "nope"}, NotFound, "unknown_kind", "kind"),
    "kind is no text": ({"kind": 5}, Invalid, "invalid_job", "kind"),
    "no kind": ({"kind": None}, Invalid, "invalid_job", "kind"),
    "payload is a list": ({"payload": [1]}, Invalid, "invalid_payload", "payload"),
    "payload is nothing": ({"payload": None}, Invalid, "invalid_payload", "payload"),
    "NaN": ({"payload": {"n": float("nan")}}, Invalid, "invalid_payload", "payload"),
    "infinity": ({"payload": {"n": float("inf")}}, Invalid, "invalid_payload", "payload"),
    "NUL": ({"payload": {"n": NUL}}, Invalid, "invalid_payload", "payload"),
    "NUL in a key": ({"payload": {NUL: 1}}, Invalid, "invalid_payload", "payload"),
    "half a character": ({"payload": {"n": HALF}}, Invalid, "invalid_payload", "payload"),
    "bytes": ({"payload": {"n": b"x"}}, Invalid, "invalid_payload", "payload"),
    "too large": ({"payload": {"n": "x" * 2**20}}, TooLarge, "payload_too_large", "payload"),
    "long number": ({"payload": {"n": 10**400}}, Invalid, "invalid_payload", "payload"),
    "very long number": ({"payload": {"n": 10**5000}}, Invalid, "invalid_payload", "payload"),
    "NUL in the account": ({"account": NUL}, Invalid, "invalid_job", "account"),
    "half a character in the topic": ({"topic": HALF}, Invalid, "invalid_job", "topic"),
    "account is no text": ({"account": 5}, Invalid, "invalid_job", "account"),
    "NUL in the key": ({"dedupe_key": NUL}, Invalid, "invalid_job", "dedupe_key"),
    "long key": ({"dedupe_key": "k" * 501}, Invalid, "invalid_job", "dedupe_key"),
    "priority out of range": ({"priority": 1001}, Invalid, "invalid_job", "priority"),
    "priority beyond any integer": ({"priority": 2**70}, Invalid, "invalid_job", "priority"),
    "priority is a text": ({"priority": "high"}, Invalid, "invalid_job", "priority"),
    "priority is a truth": ({"priority": True}, Invalid, "invalid_job", "priority"),
    "priority is a fraction": ({"priority": 1.5}, Invalid, "invalid_job", "priority"),
    "attempts beyond": ({"max_attempts": 2**31}, Invalid, "invalid_job", "max_attempts"),
    "negative delay": ({"delay": -timedelta(1)}, Invalid, "invalid_job", "delay_seconds"),
    "endless delay": ({"delay": timedelta.max}, Invalid, "invalid_job", "delay_seconds"),
    "delay is a number": ({"delay": 5}, Invalid, "invalid_job", "delay_seconds"),
    "timeout is a text": ({"timeout": "5m"}, Invalid, "invalid_job", "timeout_seconds"),
    "expires is a number": ({"expires": 5}, Invalid, "invalid_job", "expires_seconds"),
    "no time at all": ({"timeout": timedelta(0)}, Invalid, "invalid_job", "timeout_seconds"),
    "moment without a zone": (
        {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is what is wrong with it
        Invalid,
        "invalid_job",
        "run_at",
    ),
    "moment is a text": ({"run_at": "tomorrow"}, Invalid, "invalid_job", "run_at"),
    "moment too far": (
        {"run_at": datetime(9000, 1, 1, tzinfo=UTC)},
        Invalid,
        "invalid_job",
        "run_at",
    ),
    "metadata is a list": ({"metadata": [1]}, Invalid, "invalid_job", "metadata"),
    "NUL in metadata": ({"metadata": {"m": NUL}}, Invalid, "invalid_job", "metadata"),
}


@pytest.fixture
async def ready(engine: Engine) -> Engine:
    await engine.queues.declare("q")
    await engine.queues.declare_kind("k", "q")
    return engine


@pytest.mark.parametrize("wrong", BAD)
async def test_a_bad_job_is_refused_by_name_and_leaves_no_trace(
    ready: Engine, conn: asyncpg.Connection, wrong: str
) -> None:
    """The same alone and in a batch; for a batch with the number of the job."""
    changes, kind, code, field = BAD[wrong]
    good = NewJob(kind="k")
    bad = replace(good, **changes)
    before = await factory.contents(conn)
    with pytest.raises(kind) as alone:
        await ready.jobs.submit(bad)
    assert (alone.value.code, alone.value.field) == (code, field)
    with pytest.raises(kind) as among:
        await ready.jobs.submit_many([good, bad, good])
    assert (among.value.code, among.value.field) == (code, field)
    assert among.value.members["index"] == 1
    assert str(among.value) == str(alone.value)
    assert await factory.contents(conn) == before


@pytest.mark.parametrize("key", [NUL, HALF, "", "k" * 256])
async def test_a_bad_idempotency_key_is_refused(ready: Engine, key: str) -> None:
    with pytest.raises(Invalid, match="idempotency_key") as caught:
        await ready.jobs.submit(NewJob(kind="k"), idempotency_key=key)
    assert (caught.value.code, caught.value.field) == ("invalid_job", "idempotency_key")


async def test_a_result_that_cannot_be_stored_is_refused_and_another_outcome_accepted(
    ready: Engine,
) -> None:
    worker = await ready.workers.register("w")
    await ready.jobs.submit(NewJob(kind="k"))
    [job] = await ready.jobs.claim(worker, "q", 1)
    for result in (NUL, HALF, float("nan"), object()):
        with pytest.raises(Invalid, match="result") as caught:
            await ready.jobs.finish(worker, [(job, Succeeded({"r": result}))])
        assert caught.value.code == "invalid_result"
    with pytest.raises(Invalid, match="error holds a NUL"):
        await ready.jobs.finish(worker, [(job, Failed(Oops("bug", NUL)))])
    with pytest.raises(Invalid, match="a delay must be") as caught:
        await ready.jobs.finish(worker, [(job, Snoozed(-timedelta(1)))])
    assert caught.value.code == "invalid_finish"
    [verdict] = await ready.jobs.finish(worker, [(job, Failed(Oops("bad_output", "no JSON")))])
    assert verdict.verdict == "done"
