"""R-F25: an open transaction prevents the removal of dead rows, while jobs run."""

import statistics
import time

import asyncpg
import pytest

from penstock.db.connections.driver_errors import fetching
from penstock.db.connections.pool import connect_plainly
from penstock.engine.doctor import server
from support import factory
from support.connections import connections
from support.shapes import Scale

JOBS_A_SECOND = 500
BATCH = 25
# The allowed factor; times below this limit may come from a busy machine.
BOUND = 5
NOISE_SECONDS = 0.03

pytestmark = pytest.mark.timeout(1_200)


async def flow(conn: asyncpg.Connection, worker: int, seconds: float) -> list[float]:
    """Submit, start and finish jobs at an even pace; return how long each claim took."""
    took = []
    begun = time.monotonic()
    due = begun
    while time.monotonic() < begun + seconds:
        await factory.submit_rows(conn, [{"kind": "q"}] * BATCH)
        asked = time.perf_counter()
        started = await factory.claim(conn, worker, limit=BATCH)
        took.append(time.perf_counter() - asked)
        assert len(started) == BATCH
        await factory.finish(conn, worker, started)
        due += BATCH / JOBS_A_SECOND
        while time.monotonic() < due:
            await conn.execute("select pg_sleep(0.001)")
    return took


def p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98]


async def test_an_old_transaction_slows_claims_only_within_a_bound(
    migrated: str, scale: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`penstock doctor` names the transaction; after its end claims are as fast as before."""
    async with connections(migrated) as connect:
        conn, holder = await connect(), await connect()
        await factory.queue(conn)
        worker = await factory.worker(conn, lease="1 day")
        await flow(conn, worker, scale(1, 10))
        before = p99(await flow(conn, worker, scale(3, 30)))
        async with holder.transaction(isolation="repeatable_read"):
            await holder.fetch("select count(*) from penstock.job")
            monkeypatch.setattr(server, "LONG_MINUTES", 0)
            asks = await connect_plainly(migrated, name="doctor")
            finding = await server.transactions(fetching(asks))
            await asks.close()
            assert finding.level == "warning"
            assert f"process {holder.get_server_pid()}" in finding.message
            assert finding.advice
            took = await flow(conn, worker, scale(8, 600))
            during = p99(took[-len(took) // 4 :])
        await conn.execute("vacuum penstock.job")
        after = p99(await flow(conn, worker, scale(2, 30)))
        print(
            f"claims, p99: {before:.4f} s, {during:.4f} s beside an old transaction,"
            f" {after:.4f} s after it"
        )
        assert during <= BOUND * before + NOISE_SECONDS
        assert after <= 2 * before + NOISE_SECONDS
