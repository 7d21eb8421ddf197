"""How soon does PgQueuer start a job, compared with Penstock in the same run?

    uv pip install --target PEER pgqueuer
    PYTHONPATH=PEER python bench/peers/pgqueuer_pickup.py

Like pickup.py: an idle worker in a separate process, one job every 25 ms, measured from just before
the enqueue to the first line of the handler. Each has its own database on the same server. PgQueuer
runs with its defaults; it is the fastest Python peer on Postgres that we know of.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

import bare
from app import build
from pickup import paced, picked_up
from report import percentile
from server import connection, database, server
from worker_process import worker_process

TURNS, SAMPLES = 5, 100
READY_SECONDS = 3.0


async def consume(dsn: str, file: Path) -> None:
    """Run the peer's worker; it writes the moment of each handler's first line to the file."""
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))

    @queuer.entrypoint("stamp")
    async def stamp(job: Job) -> None:
        moment = time.time_ns()
        with file.open("a") as out:
            out.write(f"{(job.payload or b'').decode()} {moment}\n")

    await queuer.run()


async def theirs(queries: Queries, file: Path, samples: int) -> list[float]:
    """Return the milliseconds from the call to the handler."""
    file.write_text("")  # noqa: ASYNC240  # a moment
    called: dict[str, int] = {}

    async def enqueue() -> None:
        name = str(len(called))
        called[name] = time.time_ns()
        await queries.enqueue("stamp", name.encode())

    await paced(samples, enqueue)
    async with asyncio.timeout(30):
        while len(lines := file.read_text().splitlines()) < samples:  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.05)
    return [(int(at) - called[name]) / 1e6 for name, at in (line.split() for line in lines)]


async def main() -> None:
    ours: list[float] = []
    peers: list[float] = []
    inserts: list[float] = []
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(server())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        our_dsn = await database(running, "ours")
        their_dsn = await database(running, "theirs", migrated=False)
        conn = await connection(our_dsn)
        await conn.execute(bare.TABLES)
        app = build(our_dsn)
        await app.engine()
        queries = Queries(AsyncpgDriver(await asyncpg.connect(their_dsn)))
        await queries.install()
        file = folder / "stamps"
        peer = subprocess.Popen([sys.executable, __file__, their_dsn, str(file)])  # noqa: ASYNC220
        stack.callback(peer.kill)
        await stack.enter_async_context(worker_process(our_dsn, conn))
        await asyncio.sleep(READY_SECONDS)

        async def insert() -> None:
            inserts.append(await bare.insert(conn))

        await picked_up(conn, app.kinds["stamp"], SAMPLES // 2)  # warm
        await theirs(queries, file, SAMPLES // 2)
        for _ in range(TURNS):
            await paced(SAMPLES, insert)
            samples = await picked_up(conn, app.kinds["stamp"], SAMPLES)
            ours += [each.handler - each.called for each in samples]
            peers += await theirs(queries, file, SAMPLES)
        await app.close()
    for name, times in (("ours", ours), ("PgQueuer", peers), ("commit of a row", inserts)):
        print(
            f"{name:16} p50 {statistics.median(times):6.2f} ms  p99 {percentile(times, 99):6.2f} ms"
        )
    print(f"ours / PgQueuer, p50: {statistics.median(ours) / statistics.median(peers):.2f}")


if __name__ == "__main__":
    uvloop.run(consume(sys.argv[1], Path(sys.argv[2])) if len(sys.argv) > 1 else main())
