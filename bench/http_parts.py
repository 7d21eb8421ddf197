"""The parts of bench/http.py: each route compared with the least that it has to do.

Our server and the bare one run in turn on the same database server, each in its own process. The
same client calls them over the same number of connections. Requests are built before the clock
starts.
"""

import json
import pstats
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

import bare
from app import build
from http_client import request, send
from http_process import http_process
from penstock.db.embedded.database import Embedded
from penstock.engine.engine import Engine
from penstock.worker.worker import Options, Worker
from report import Found, Line, Rounds, medians
from server import connection, fresh

CONNECTIONS = 16
# How many jobs are read, and how many are queued meanwhile.
FEW = 50
# A queue of this many jobs is short.
SHORT = 96
BATCH = 1_000
ANSWER = "word " * 40
JOB = {"kind": "mark", "payload": {"answer": ANSWER}}


@dataclass(frozen=True, slots=True)
class Site:
    dsn: str
    conn: asyncpg.Connection
    api: int
    bare: int
    key: str

    def submits(self, many: int) -> list[bytes]:
        return [request("POST", "/v1/jobs", key=self.key, body=JOB)] * many


@asynccontextmanager
async def site(running: Embedded, *arguments: str) -> AsyncIterator[Site]:
    """Run both servers on a fresh database, with a key of kind `app`."""
    async with fresh(running) as dsn:
        app = build(dsn)
        await app.engine()  # declares
        await app.close()
        async with await Engine.open(dsn, max_connections=1) as engine:
            key, _ = await engine.keys.create("app")
        conn = await connection(dsn)
        await conn.execute(bare.TABLES)
        async with http_process(dsn, "api", *arguments) as ours, http_process(dsn, "bare") as other:
            yield Site(dsn, conn, ours, other, key)
        await conn.close()


async def submit(running: Embedded, *, quick: bool) -> Found:
    """Single submits to a short and to a long queue, compared with a route that inserts one row.

    In a long one each submit also returns its position, for which a hundred jobs are counted.
    """
    turns, many = (2, 4 * SHORT) if quick else (5, 40 * SHORT)
    rounds: Rounds = {"ours": [], "bare": []}
    deep: Rounds = {"ours": [], "bare": []}
    async with site(running) as at:

        async def short(_: str, port: int) -> float:
            seconds = 0.0
            for _ in range(many // SHORT):
                rate = await send(port, at.submits(SHORT), connections=CONNECTIONS, status=201)
                seconds += SHORT / rate
                await _empty(at)
            return many / seconds

        async def long(_: str, port: int) -> float:
            return await send(port, at.submits(many), connections=CONNECTIONS, status=201)

        await _in_turn(at, turns, short, rounds)
        await _in_turn(at, turns, long, deep)
    found, behind = medians(rounds), medians(deep)
    beside = "bare route that inserts a row"
    what = f"single submits over HTTP, {CONNECTIONS} connections"
    return Found(
        [
            Line(what, found["ours"], "/s", found["bare"], beside, 0.4),
            Line(f"  to a queue of up to {many:,}", behind["ours"], "/s", behind["bare"], beside),
        ],
        {**rounds, **{f"{name}, long queue": values for name, values in deep.items()}},
    )


async def status(running: Embedded, *, quick: bool) -> Found:
    """Reads of a job, compared with a route that selects one row."""
    turns, many = (2, 400) if quick else (5, 4_000)
    async with site(running) as at:
        jobs = {"bare": await _submitted(at, at.bare, FEW), "finished": await _finished(at, FEW)}
        jobs["queued"] = await _submitted(at, at.api, FEW)
        rounds: Rounds = {name: [] for name in jobs}

        await bare.settle(at.conn, "penstock.job", "penstock.finished", "bare_job")
        for number in range(turns + 1):
            for name in sorted(rounds, reverse=bool(number % 2)):
                port = at.bare if name == "bare" else at.api
                paths = [f"/v1/jobs/{jobs[name][n % FEW]}" for n in range(many)]
                requests = [request("GET", path, key=at.key) for path in paths]
                rate = await send(port, requests, connections=CONNECTIONS, status=200)
                if number:  # the first one warms up
                    rounds[name].append(rate)
    found = medians(rounds)
    beside = (found["bare"], "bare route that selects a row")
    return Found(
        [
            Line(
                f"reads of a finished job, {CONNECTIONS} connections",
                found["finished"],
                "/s",
                *beside,
                0.4,
            ),
            Line(
                f"reads of one of {FEW} queued jobs, {CONNECTIONS} connections",
                found["queued"],
                "/s",
                *beside,
                0.4,
            ),
        ],
        rounds,
    )


async def batch(running: Embedded, *, quick: bool) -> Found:
    """Batches of 1,000 over HTTP, compared with direct calls of `submit_many`, one at a time."""
    turns, many = (2, 2) if quick else (5, 15)
    rounds: Rounds = {"ours": [], "bare": []}
    async with site(running) as at:
        body = {"jobs": [JOB] * BATCH}
        requests = [request("POST", "/v1/jobs/batch", key=at.key, body=body)] * many
        app = build(at.dsn)
        kind = app.kinds["mark"]
        await app.engine()

        async def direct() -> None:
            for _ in range(many):
                await kind.submit_many({"answer": ANSWER} for _ in range(BATCH))

        async def turn(name: str, port: int) -> float:
            if name == "bare":
                return await bare.timed(many * BATCH, direct)
            return BATCH * await send(port, requests, connections=1, status=201)

        await _in_turn(at, turns, turn, rounds)
        await app.close()
    found = medians(rounds)
    return Found(
        [
            Line(
                f"jobs in batches of {BATCH:,} over HTTP",
                found["ours"],
                "/s",
                found["bare"],
                "submit_many called directly",
                0.5,
            )
        ],
        rounds,
    )


PARTS: dict[str, Callable[..., Awaitable[Found]]] = {
    part.__name__: part for part in (submit, status, batch)
}


async def profile(running: Embedded, parts: Sequence[str], *, quick: bool) -> None:
    """Print where the API's process spends its time, for each part."""
    many = 400 if quick else 5_000
    for name in parts:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-profile-") as folder:
            file = Path(folder) / "profile"
            async with site(running, "--profile", str(file)) as at:
                match name:
                    case "submit":
                        requests, expected = at.submits(many), 201
                    case "status":
                        jobs = await _submitted(at, at.api, 100)
                        requests = [
                            request("GET", f"/v1/jobs/{jobs[n % 100]}", key=at.key)
                            for n in range(many)
                        ]
                        expected = 200
                    case _:
                        body = {"jobs": [JOB] * BATCH}
                        batch = request("POST", "/v1/jobs/batch", key=at.key, body=body)
                        requests, expected = [batch] * (many // 250), 201
                connections = 1 if name == "batch" else CONNECTIONS
                rate = await send(at.api, requests, connections=connections, status=expected)
            print(f"{name}: {rate:,.0f} requests per second under the profiler")
            pstats.Stats(str(file)).sort_stats("tottime").print_stats(35)


async def _finished(at: Site, many: int) -> list[str]:
    """Submit jobs and let a worker run them; return their ids."""
    jobs = await _submitted(at, at.api, many)
    app = build(at.dsn)
    await app.engine()
    await Worker(at.dsn, app.handlers(), Options(name="bench", until_idle=True)).run()
    await app.close()
    return jobs


async def _submitted(at: Site, port: int, many: int) -> list[str]:
    bodies: list[bytes] = []
    await send(port, at.submits(many), connections=CONNECTIONS, status=201, kept=bodies)
    return [json.loads(body)["id"] for body in bodies]


async def _in_turn(
    at: Site, turns: int, turn: Callable[[str, int], Awaitable[float]], rounds: Rounds
) -> None:
    """Measure both sides in every turn, in alternating order, each on empty tables."""
    sides = [("ours", at.api), ("bare", at.bare)]
    for number in range(turns + 1):
        for name, port in reversed(sides) if number % 2 else sides:
            rate = await turn(name, port)
            if number:  # the first one warms up
                rounds[name].append(rate)
            await _empty(at)
            await bare.settle(at.conn, "penstock.job", "bare_job")


async def _empty(at: Site) -> None:
    await at.conn.execute("delete from penstock.job")
    await at.conn.execute("delete from bare_job")
