"""What do credits cost a submit: reserve and insert, compared with an insert without a price?

    python bench/credits.py [--quick]

Priced and free jobs of the same accounts, in turn within the same run: single submits from 16
connections, on many accounts and on a single one, and one large submit_many. A priced job changes
its account's balance and writes a line of the ledger, in the transaction of its insert.
"""

import asyncio
import sys
from collections.abc import Sequence
from itertools import cycle, islice

import asyncpg
import uvloop

import bare
from penstock.db.embedded.database import Embedded
from report import Found, Line, Rounds, medians
from server import connection, fresh, record_part, server, smoke

QUICK = smoke() or "--quick" in sys.argv
TURNS = 2 if QUICK else 5
CONNECTIONS = 16
ACCOUNTS = 1_000 if QUICK else 10_000
SINGLES = 800 if QUICK else 16_000
HOT_SINGLES = 400 if QUICK else 4_000
BULK = 1_000 if QUICK else 10_000
MONEY = 1_000_000_000

KINDS = {"free": {}, "paid": {"price": 3}}


async def set_up(conn: asyncpg.Connection) -> list[str]:
    """Declare two kinds that differ in their price, and accounts with enough credits."""
    await conn.execute("select penstock.declare_queue('q')")
    for kind, options in KINDS.items():
        await conn.execute("select penstock.declare_kind($1, 'q', $2)", kind, options)
    names = [f"a{n}" for n in range(ACCOUNTS)]
    await conn.execute(
        "select count(penstock.grant_credits(a, $2, 'for the run')) from unnest($1::text[]) a",
        names,
        MONEY,
    )
    return names


async def singles(
    conns: Sequence[asyncpg.Connection], kind: str, accounts: Sequence[str], many: int
) -> bare.Rate:
    """Submit single jobs, each in its own transaction, from all connections at once."""
    names = list(islice(cycle(accounts), many))

    async def submit(conn: asyncpg.Connection, mine: Sequence[str]) -> None:
        for name in mine:
            await conn.fetchrow(
                "select id, status, balance from penstock.submit_one($1, '{}', $2)", kind, name
            )

    async def work() -> None:
        shares = (names[n :: len(conns)] for n in range(len(conns)))
        async with asyncio.TaskGroup() as group:
            for conn, mine in zip(conns, shares, strict=True):
                group.create_task(submit(conn, mine))

    return await bare.timed(many, work)


async def at_once(conn: asyncpg.Connection, kind: str, accounts: Sequence[str]) -> bare.Rate:
    """Submit many jobs in one transaction."""
    names = list(islice(cycle(accounts), BULK))

    async def work() -> None:
        await conn.fetch(
            "select id, status from penstock.submit_many($1, $2, $3)",
            [kind] * BULK,
            [{}] * BULK,
            names,
        )

    return await bare.timed(BULK, work)


async def start_over(conn: asyncpg.Connection) -> None:
    """Remove the jobs; keep balances and ledger, as in production."""
    await conn.execute("delete from penstock.job")
    await bare.settle(conn, "penstock.job", "penstock.account", "penstock.ledger")


async def credits_(running: Embedded) -> Found:
    rounds: Rounds = {}
    async with fresh(running) as dsn:
        conn = await connection(dsn)
        names = await set_up(conn)
        conns = [await connection(dsn) for _ in range(CONNECTIONS)]
        await bare.settle(conn, "penstock.account", "penstock.ledger")

        async def turn(what: str, kind: str) -> None:
            match what:
                case "many":
                    rate = await singles(conns, kind, names, SINGLES)
                case "hot":
                    rate = await singles(conns, kind, names[:1], HOT_SINGLES)
                case _:
                    rate = await at_once(conn, kind, names)
            rounds.setdefault(f"{what}, {kind}", []).append(rate)
            await start_over(conn)

        for number in range(TURNS):
            for what in ("many", "hot", "bulk"):
                # Alternate which kind goes first.
                for kind in sorted(KINDS, reverse=bool(number % 2)):
                    await turn(what, kind)
        moved = await conn.fetchval("select count(*) from penstock.ledger where kind = 'reserve'")
        assert moved == TURNS * (SINGLES + HOT_SINGLES + BULK)
        for each in (*conns, conn):
            await each.close()
    found = medians(rounds)

    def line(what: str, label: str, must: float | None) -> Line:
        free = "without a price"
        return Line(label, found[f"{what}, paid"], "/s", found[f"{what}, free"], free, must)

    return Found(
        [
            line("many", f"priced submits, {CONNECTIONS} connections, {ACCOUNTS:,} accounts", 0.5),
            line("hot", f"priced submits, {CONNECTIONS} connections, one account", None),
            line("bulk", f"submit_many of {BULK:,} priced, {ACCOUNTS:,} accounts", 0.5),
        ],
        rounds,
    )


async def main() -> None:
    async with server() as running:
        found = await credits_(running)
    for line in found.lines:
        print(line)
    if not QUICK:
        record_part("credits", "credits", found.kept())


if __name__ == "__main__":
    uvloop.run(main())
