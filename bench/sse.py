"""How many live streams does one API process hold, and how soon does a change reach all of them?

    python bench/sse.py [--quick]

The server runs like `penstock serve`; each client has a bare socket, and all watch one topic. A
change is that a job finishes: the time counts from just before it is written until each client has
it. Then the server is stopped and started again. All clients reconnect after two seconds, at the
same moment, and the time counts from a client's request until it has the state of the topic. Each
figure is compared with that of a single client. (Memory on Linux only.)
"""

import argparse
import asyncio
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import uvloop

from penstock.db.embedded.database import Embedded
from report import Found, Line, Rounds, percentile
from server import connection, fresh, record_part, server
from watchers import RETRY_SECONDS, Watchers

SECRET = secrets.token_hex(32)
TOPIC = "bench"
READY_SECONDS = 30.0
STOP_SECONDS = 30.0
RECEIVE_SECONDS = 20.0
_PAUSE_SECONDS = 0.15
_QUIET_SECONDS = 2.0


@dataclass(slots=True)
class Serving:
    """`penstock serve` in a separate process."""

    dsn: str
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    async def start(self) -> None:
        words = ["serve", "--port", str(self.port), "--json"]
        self.process = subprocess.Popen(  # noqa: ASYNC220  # returns at once
            [sys.executable, "-m", "penstock", *words],
            env={**os.environ, "PENSTOCK_DSN": self.dsn, "PENSTOCK_SECRET": SECRET}
            | {"PENSTOCK_LOG_LEVEL": "WARNING"},
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout
        async with asyncio.timeout(READY_SECONDS):
            line = await asyncio.to_thread(self.process.stdout.readline)
        assert line, "the server did not start"

    async def stop(self) -> float:
        """Stop the server; return how long that took."""
        assert self.process
        began = time.perf_counter()
        self.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self.process.wait, STOP_SECONDS)
        return time.perf_counter() - began

    def memory_mb(self) -> float:
        assert self.process
        if not sys.platform.startswith("linux"):
            return float("nan")
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise LookupError("VmRSS")


@asynccontextmanager
async def serving(dsn: str) -> AsyncIterator[Serving]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = Serving(dsn, port)
    await running.start()
    try:
        yield running
    finally:
        if running.process and running.process.poll() is None:
            running.process.kill()
            running.process.wait()


class Jobs:
    """Running jobs of the topic, which are finished one after the other."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self._conn = conn
        self._running: list[Any] = []
        self._worker = 0
        self._round = 0

    async def begin(self, count: int) -> None:
        conn = self._conn
        await conn.execute("select penstock.declare_queue('bench', '{\"timeout_seconds\": 3600}')")
        await conn.execute("select penstock.declare_kind('bench', 'bench')")
        jobs = [{"kind": "bench", "payload": {}, "topic": TOPIC}] * count
        await conn.fetch("select penstock.submit_jobs($1)", jobs)
        self._worker = await conn.fetchval("select penstock.register_worker('bench', '1 hour')")
        self._running = await conn.fetch(
            "select id, attempt from penstock.claim_jobs($1, 'bench', $2)", self._worker, count
        )

    async def finish_one(self, watchers: Watchers) -> list[float]:
        """Finish one job; return how long each client waited for the event, in ms."""
        self._round += 1
        times = watchers.times
        times.had.clear()
        times.mark = f'"round": {self._round}}}'.encode()
        job = self._running.pop()
        began = time.perf_counter()
        await self._conn.fetch(
            "select * from penstock.finish_jobs($1, $2, $3, $4, $5, $6, $7::text[]::interval[])",
            *(self._worker, [job["id"]], [job["attempt"]], ["succeeded"]),
            *([{"round": self._round}], [None], [None]),
        )
        await self._conn.execute("select penstock.notify_change()")
        await watchers.until_all(times.had, RECEIVE_SECONDS)
        return [(at - began) * 1000 for at in times.had.values()]


async def streams(running: Embedded, count: int, *, rounds: int, restarts: int) -> Found:
    """Measure memory, the time until a change reaches all, and a restart."""
    figures: Rounds = {name: [] for name in ("p50 ms", "p99 ms", "one ms", "back s", "stop s")}
    async with fresh(running) as dsn:
        conn = await connection(dsn)
        jobs = Jobs(conn)
        await jobs.begin(2 * rounds + restarts + 10)
        async with serving(dsn) as api:
            path = f"/v1/topics/{TOPIC}/events"
            await asyncio.sleep(_QUIET_SECONDS)
            idle_mb = api.memory_mb()
            one = Watchers(api.port, path, SECRET, 1)
            await one.open()
            for _ in range(rounds):
                await asyncio.sleep(_PAUSE_SECONDS)
                figures["one ms"] += await jobs.finish_one(one)
            await one.close()
            watchers = Watchers(api.port, path, SECRET, count)
            began = time.perf_counter()
            await watchers.open()
            figures["open s"] = [time.perf_counter() - began]
            await asyncio.sleep(_QUIET_SECONDS)
            for _ in range(rounds):
                await asyncio.sleep(_PAUSE_SECONDS)
                waited = await jobs.finish_one(watchers)
                figures["p50 ms"].append(percentile(waited, 50))
                figures["p99 ms"].append(percentile(waited, 99))
            held_mb = api.memory_mb()
            for _ in range(restarts):
                watchers.times.came.clear()
                figures["stop s"].append(await api.stop())
                await api.start()
                await watchers.until_all(watchers.times.came, 4 * RETRY_SECONDS + RECEIVE_SECONDS)
                back = [watchers.times.came[n] - watchers.times.asked[n] for n in range(count)]
                figures["back s"].append(max(back))
            figures["MB"], figures["idle MB"] = [held_mb], [idle_mb]
            figures["MB after restarts"] = [api.memory_mb()]
            await watchers.close()
        await conn.close()
    return Found(_lines(count, figures), figures)


def _lines(count: int, figures: Rounds) -> Sequence[Line]:
    what = f"{count:,} streams, one process:"
    one = percentile(figures["one ms"], 99)
    return [
        Line(
            f"{what} memory",
            *(figures["MB"][0], "MB", figures["idle MB"][0], "idle server"),
            must=300,
            of="ours",
            least=False,
        ),
        Line(
            f"{what} a change reaches them, p99",
            *(max(figures["p99 ms"]), "ms", one, "one client, p99"),
            must=500 if count <= 2_000 else None,
            of="ours",
            least=False,
        ),
        Line(
            f"{what} the same, median of p50",
            *(statistics.median(figures["p50 ms"]), "ms"),
            *(statistics.median(figures["one ms"]), "one client, p50"),
        ),
        Line(
            f"{what} after a restart all have the state",
            *(max(figures["back s"]), "s", max(figures["stop s"]), "the server's stop"),
            must=2 if count <= 2_000 else None,
            of="ours",
            least=False,
        ),
    ]


async def main(*, quick: bool) -> None:
    counts = (100,) if quick else (2_000, 5_000)
    rounds, restarts = (5, 1) if quick else (30, 3)
    async with server() as running:
        for count in counts:
            found = await streams(running, count, rounds=rounds, restarts=restarts)
            for line in found.lines:
                print(line)
            if not quick:
                record_part("sse", f"streams_{count}", found.kept())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", "--smoke", action="store_true")
    uvloop.run(main(quick=parser.parse_args().quick))
