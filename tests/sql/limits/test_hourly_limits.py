"""Submits per hour by plan, with the figures of the requirements."""

import asyncpg

from support import factory
from support.factory import refused

PER_HOUR = {"pro": 999, "growth": 100, "starter": 50, "free": 10}


async def test_each_plan_accepts_its_number_of_jobs_an_hour_and_no_more(
    conn: asyncpg.Connection,
) -> None:
    """G7"""
    await factory.queue(conn)
    for name, most in PER_HOUR.items():
        await factory.plan(conn, name, default=False, per_hour=most)
        await conn.execute("select penstock.create_account($1, $1)", name)
        jobs = await factory.submit_rows(conn, [{"kind": "q", "account": name}] * most)
        assert len(jobs) == most
        with refused(429, "rate_limited", "account") as error:
            await factory.submit(conn, account=name)
        assert 3_500 < error["retry_after"] <= 3_600
