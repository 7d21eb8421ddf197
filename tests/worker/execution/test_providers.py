"""Workers and providers that fail: outages cost nothing, refusals are waited out, limits hold."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock import Penstock
from penstock.client.config.toml import load
from penstock.models.simulated.calls import Call
from penstock.models.simulated.model import Model, simulated
from support.factory import read
from support.shapes import Scale
from support.waiting import eventually
from support.worker.crew import submit_many, until_finished, working

App = Callable[..., Penstock]

QUEUE = """
[queues.{queue}]
concurrency = {concurrency}
retry = {{ attempts = 2, delay = "1m" }}
[jobs.{queue}]
queue = "{queue}"
handler = "ollama"
url = "{url}"
model = "llama3"
prompt = "Give feedback on: {{answer}}"
fields = {{ answer = "str" }}
"""
LIMITS = """
first_token_timeout = "{stall}s"
stall_timeout = "{stall}s"
"""
STALL_SECONDS = 2


@pytest.fixture
def app(tmp_path: Path) -> App:
    """An app whose queues each have one model as provider, by (name, model, concurrency)."""

    def made(*queues: tuple[str, Model, int], stall: int | None = 20) -> Penstock:
        limits = "" if stall is None else LIMITS.format(stall=stall)
        text = "".join(
            QUEUE.format(queue=queue, url=model.url, concurrency=n) + limits
            for queue, model, n in queues
        )
        (tmp_path / "penstock.toml").write_text(text)
        return load(tmp_path / "penstock.toml")

    return made


async def submit(conn: asyncpg.Connection, n: int, queue: str = "model") -> list[UUID]:
    return await submit_many(conn, queue, n, {"answer": "I like trains"})


def began(model: Model, since: float, until: float) -> list[Call]:
    return [call for call in model.calls if since <= call.at < until]


async def until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.time()))


@pytest.mark.alone
async def test_after_an_outage_the_first_result_comes_at_once_without_failures(
    database: str, conn: asyncpg.Connection, app: App, scale: Scale
) -> None:
    """F5: 200 slots, the model refuses connections for 20 s (6 s in `make test`)."""
    generation = 0.5
    async with (
        simulated(slots=200, latency=generation, tokens=5) as model,
        working(database, app(("model", model, 200)), poll=1),
    ):
        jobs = await submit(conn, 1_200)
        await eventually(lambda: _finished(conn, 100), "work is under way")
        model.order("refuse")
        await until(time.time() + scale(6, 20))
        assert await _circuit(conn) == "open"
        healed = time.time()
        model.heal()
        rows = await until_finished(conn, jobs, seconds=60)
    assert {row["status"] for row in rows} == {"succeeded"}
    assert {row["failures"] for row in rows} == {0}
    first = min(
        at for row in rows if (at := row["finished_at"].timestamp()) > healed + generation / 2
    )
    assert first - healed <= 2 + generation


@pytest.mark.alone
async def test_a_storm_of_429_is_waited_out_and_other_queues_do_not_notice(
    database: str, conn: asyncpg.Connection, app: App
) -> None:
    """Retry-After 5: a twentieth of the normal calls, and full rate within 10 s after it."""
    normal_seconds, storm_seconds = 4.0, 12.0
    async with (
        simulated(slots=100, latency=0.2, tokens=2) as model,
        simulated(slots=100, latency=0.2, tokens=2) as other,
        working(database, app(("model", model, 30), ("other", other, 5))),
    ):
        await submit(conn, 8_000)
        await submit(conn, 2_000, "other")
        await eventually(lambda: _finished(conn, 100), "work is under way")
        begun = time.time()
        await until(begun + normal_seconds)
        storm = time.time()
        model.order("storm", code=429, form="seconds", after=5)
        await until(storm + storm_seconds)
        over = time.time()
        model.heal()
        await until(over + 14)
        rate = len(began(model, begun, storm)) / normal_seconds
        beside = len(began(other, begun, storm)) / normal_seconds
        assert rate > 50
        assert len(began(model, storm, over)) <= 0.05 * rate * storm_seconds
        assert len(began(model, over + 10, over + 14)) >= 0.8 * rate * 4
        assert len(began(other, storm, over)) >= 0.8 * beside * storm_seconds
    charged = "select count(*) from penstock.finished where failures > 0"
    assert await conn.fetchval(charged) == 0


@pytest.mark.timeout(180)
async def test_one_at_a_time_holds_whichever_worker_is_killed(
    database: str, conn: asyncpg.Connection, app: App, tmp_path: Path, scale: Scale
) -> None:
    """F1, M3: a model that counts never sees two connected calls, over random worker kills."""
    async with simulated(slots=5, latency=0.005, tokens=3) as model:
        app(("model", model, 1))
        crew = Crowd(database, tmp_path)
        jobs: list[UUID] = []
        try:
            for _ in range(3):
                crew.start()
            await eventually(lambda: _there(conn, 3), "three workers are there", seconds=30)
            jobs = await submit(conn, scale(60, 2_000))
            rng = random.Random(20)
            while await _left(conn):
                await asyncio.sleep(rng.uniform(0.2, 1.0))
                crew.kill(rng)
                crew.start()
                await eventually(lambda: _there(conn, 2), "others are there", seconds=30)
            rows = await until_finished(conn, jobs, seconds=30)
        finally:
            crew.close()
    assert {row["status"] for row in rows} == {"succeeded"}
    assert model.most_at_once == 1
    assert len(model.calls) >= len(jobs)


# The fault, its class, what becomes of the job, and whether tokens were paid for.
FAULTS: list[tuple[str, dict[str, Any], str, str, bool]] = [
    ("hang", {}, "stalled", "scheduled", False),
    ("hang_mid", {"after": 5}, "stalled", "scheduled", True),
    ("half_body", {}, "interrupted", "scheduled", True),
    ("error_line", {}, "interrupted", "scheduled", True),
    ("reset", {}, "interrupted", "scheduled", False),
    ("status", {"code": 401}, "auth", "scheduled", False),
    ("status", {"code": 500}, "provider_error", "scheduled", False),
    ("storm", {"code": 429, "form": "seconds", "after": 60}, "rate_limited", "queued", False),
    ("storm", {"code": 529, "form": "none"}, "overloaded", "scheduled", False),
    ("quota", {}, "quota", "scheduled", False),
    ("html", {}, "overloaded", "scheduled", False),
    ("length", {}, "bad_output", "scheduled", True),
    ("empty", {}, "bad_output", "scheduled", False),
]


async def test_each_fault_has_its_class_in_the_database_and_its_cost_is_kept(
    database: str, conn: asyncpg.Connection, app: App
) -> None:
    """S9: within the deadline of the handler and a second; a failed attempt is paid for, too."""
    async with simulated(slots=50, tokens=20) as model:
        names = [f"q{n}" for n in range(len(FAULTS))]
        for name, (fault, terms, *_) in zip(names, FAULTS, strict=True):
            model.order(fault, contains=f"on: {name}.", **terms)
        began_at = time.time()
        async with working(
            database, app(*((name, model, 1) for name in names), stall=STALL_SECONDS)
        ):
            jobs = [(await submit_many(conn, name, 1, {"answer": f"{name}."}))[0] for name in names]
            settled = "select count(distinct job_id) from penstock.attempts where job_id = any ($1)"

            async def all_settled() -> bool:
                return bool(await conn.fetchval(settled, jobs) >= len(jobs))

            await eventually(all_settled, "every attempt settles", seconds=STALL_SECONDS + 5)
        assert time.time() - began_at < STALL_SECONDS + 5
    for job, (fault, terms, cls, status, paid) in zip(jobs, FAULTS, strict=True):
        first = await conn.fetchrow(
            "select error, usage from penstock.attempts where job_id = $1 and attempt = 1", job
        )
        assert first
        assert first["error"]["class"] == cls, (fault, terms)
        assert bool(first["usage"]) == paid, (fault, terms, first["usage"])
        assert (await read(conn, job))["status"] == status, (fault, terms)


async def test_a_silent_model_gets_the_jobs_whole_time_and_its_circuit_counts_it(
    database: str, conn: asyncpg.Connection, app: App
) -> None:
    """F3: without a first_token_timeout the job's timeout ends the wait, here 1 s."""
    async with simulated(slots=5, tokens=5) as model:
        model.order("hang")
        async with working(database, app(("model", model, 1), stall=None)):
            await conn.execute("select penstock.edit_queue('model', '{\"timeout_seconds\": 1}')")
            [job] = await submit(conn, 1)
            settled = "select error, outcome, ended_at - started_at as took from penstock.attempts"
            await eventually(lambda: _value(conn, f"select exists ({settled})"), "it is stopped")
            first = await conn.fetchrow(settled)
    assert first
    assert first["error"]["class"] == "stalled"
    assert first["outcome"] == "retried"
    assert first["took"].total_seconds() > 0.8
    assert (await read(conn, job))["status"] == "scheduled"
    assert await conn.fetchval("select in_row from penstock.circuit") == 1


class Crowd:
    """Workers of `penstock worker`, which are started and killed."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._environment = {**os.environ, "PENSTOCK_DSN": dsn}
        self._folder = folder
        self._alive: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        with (self._folder / "workers.log").open("ab") as log:
            self._alive.append(
                subprocess.Popen(
                    [sys.executable, "-m", "penstock", "worker", "penstock.toml"],
                    cwd=self._folder,
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                )
            )

    def kill(self, rng: random.Random) -> None:
        process = self._alive.pop(rng.randrange(len(self._alive)))
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in self._alive:
            process.kill()
            process.wait()


async def _value(conn: asyncpg.Connection, sql: str, *values: Any) -> bool:
    return bool(await conn.fetchval(sql, *values))


async def _finished(conn: asyncpg.Connection, n: int) -> bool:
    return await _value(conn, "select count(*) >= $1 from penstock.finished", n)


async def _there(conn: asyncpg.Connection, n: int) -> bool:
    return await _value(conn, "select count(*) >= $1 from penstock.worker_health where alive", n)


async def _left(conn: asyncpg.Connection) -> bool:
    return await _value(conn, "select exists (select from penstock.job)")


async def _circuit(conn: asyncpg.Connection) -> str:
    state: str = await conn.fetchval("select state from penstock.circuit")
    return state
