"""What does a submit through `@app.job` cost compared with a bare commit of a row, and in bulk?

No worker runs. Wake-ups are sent as in production.
"""

import bare
from app import build
from penstock.db.embedded.database import Embedded
from report import Found, Line, Rounds, medians
from server import connection, fresh


async def submit(running: Embedded, *, quick: bool) -> Found:
    """Single submits one after the other, and many in one transaction."""
    turns, singles, bulk = (2, 200, 5_000) if quick else (5, 2_000, 50_000)
    rounds: Rounds = {"commits": [], "submits": [], "copy": [], "submit_many": []}
    async with fresh(running) as dsn:
        app = build(dsn)
        kind = app.kinds["noop"]
        await app.engine()
        conn = await connection(dsn)
        await conn.execute(bare.TABLES)
        await conn.execute(bare.COPIED)

        async def one_by_one() -> None:
            for _ in range(singles):
                await kind.submit()

        async def at_once() -> None:
            await kind.submit_many({} for _ in range(bulk))

        for _ in range(turns):
            rounds["commits"].append(await bare.commits(conn, singles))
            rounds["submits"].append(await bare.timed(singles, one_by_one))
            rounds["copy"].append(await bare.copy(conn, bulk))
            rounds["submit_many"].append(await bare.timed(bulk, at_once))
            await conn.execute("delete from penstock.job")
            await bare.settle(conn, "penstock.job")
        await app.close()
        await conn.close()
    found = medians(rounds)
    return Found(
        [
            Line(
                "single submits, one after the other",
                found["submits"],
                "/s",
                found["commits"],
                "bare commits of a row",
                0.4,
            ),
            Line(
                f"submit_many of {bulk:,}",
                found["submit_many"],
                "/s",
                found["copy"],
                "COPY with the same indexes",
                60_000,
                of="ours",
            ),
        ],
        rounds,
    )
