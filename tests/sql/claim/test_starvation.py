"""Pro customers who never stop submitting, and one free job: how long can it be delayed?

Pro jobs have priority 10 and weight 8, the free one 50 and 1. Under `aging` the bound is in time,
under `fair` in attempts of others. `strict` has none, by design.
"""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock

pytestmark = pytest.mark.one_version

TICK = 10.0  # seconds; one job starts in each
POINTS_BETWEEN = 50 - 10
AGING_STEP = 10.0  # the default
HELD_BACK = POINTS_BETWEEN * AGING_STEP
WEIGHT = 8

# None: accounts without a limit, which have no lane of their own under `aging` and `strict`.
CONCURRENCIES = pytest.mark.parametrize(
    "limits", [(None, None), (4, 1)], ids=["no limits", "limited"]
)
PRO_ACCOUNTS = pytest.mark.parametrize("several", [1, 5], ids=["one pro", "five pros"])


class Shop:
    """A queue that starts one job in each tick, and pro customers who keep it busy."""

    def __init__(
        self, conn: asyncpg.Connection, clock: Clock, worker: int, pros: list[str]
    ) -> None:
        self.conn = conn
        self.clock = clock
        self.worker = worker
        self.pros = pros
        self.started: list[str] = []
        self.submitted = 0

    @classmethod
    async def open(
        cls,
        conn: asyncpg.Connection,
        clock: Clock,
        order: str,
        *,
        pros: int = 1,
        limits: tuple[int | None, int | None] = (None, None),
    ) -> "Shop":
        await clock.freeze()
        await factory.queue(conn, order=order)
        pro, free = ({} if limit is None else {"concurrency": limit} for limit in limits)
        await factory.plan(conn, "free", priority=50, weight=1, **free)
        await factory.plan(conn, "pro", priority=10, weight=WEIGHT, default=False, **pro)
        names = [f"pro{n}" for n in range(pros)]
        for name in names:
            await conn.execute("select penstock.create_account($1, 'pro')", name)
        worker = await factory.worker(conn, lease="30 days")
        return cls(conn, clock, worker, names)

    async def pro_jobs(self, many: int) -> None:
        """Submit that many jobs of the pro customers, in turn."""
        names = [self.pros[(self.submitted + n) % len(self.pros)] for n in range(many)]
        self.submitted += many
        await factory.submit_rows(self.conn, [{"kind": "q", "account": name} for name in names])

    async def free_job(self, account: str = "free") -> UUID:
        return await factory.submit(self.conn, account=account)

    async def tick(self, arriving: int) -> str:
        """Start one job, submit the new pro jobs until the next start; return whose job started."""
        started = await factory.claim(self.conn, self.worker)
        await factory.finish(self.conn, self.worker, started)
        await self.clock.advance(TICK)
        if arriving:
            await self.pro_jobs(arriving)
        [row] = started
        owner: str = await self.conn.fetchval(
            "select a.name from penstock.finished f join penstock.account a on a.id = f.account_id"
            " where f.id = $1",
            row["id"],
        )
        self.started.append(owner)
        return owner

    async def ticks_until(self, owner: str, *, arriving: int, most: int) -> int:
        """Return how many jobs of others start before one of this account."""
        for before in range(most):
            if await self.tick(arriving) == owner:
                return before
        raise AssertionError(f"no job of {owner} within {most} attempts: {self.started}")


async def waited(conn: asyncpg.Connection, job: UUID) -> timedelta:
    answer: timedelta = await conn.fetchval(
        "select started_at - created_at from penstock.finished where id = $1", job
    )
    return answer


@CONCURRENCIES
@PRO_ACCOUNTS
@pytest.mark.parametrize("backlog", [0, 20], ids=["at the head", "behind twenty"])
async def test_aging_starts_a_free_job_within_its_points(
    conn: asyncpg.Connection,
    clock: Clock,
    backlog: int,
    several: int,
    limits: tuple[int | None, int | None],
) -> None:
    """R-S9, G5: 400 s after its submit (40 points of 10 s) only the jobs in front go first."""
    shop = await Shop.open(conn, clock, "aging", pros=several, limits=limits)
    await shop.pro_jobs(backlog + 1)
    job = await shop.free_job()
    await shop.ticks_until("free", arriving=1, most=200)
    bound = timedelta(seconds=HELD_BACK + (backlog + 1) * TICK)
    assert timedelta(seconds=HELD_BACK) <= await waited(conn, job) <= bound


@PRO_ACCOUNTS
async def test_aging_starts_first_the_jobs_of_that_time_and_none_of_later(
    conn: asyncpg.Connection, clock: Clock, several: int
) -> None:
    """R-S9: twice as many pro jobs as can start; only those of the 400 s go first."""
    shop = await Shop.open(conn, clock, "aging", pros=several)
    await shop.pro_jobs(2)
    await shop.free_job()
    before = await shop.ticks_until("free", arriving=2, most=200)
    # The first two, and two after each tick; those of second 400 itself have the same rank.
    ticks = HELD_BACK / TICK
    assert 2 + 2 * (ticks - 1) <= before <= 2 + 2 * ticks
    assert shop.submitted > 2 * before, "they never stopped"


async def test_aging_starts_every_one_of_several_free_jobs(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """R-S9: one in ten submitted jobs is free; each starts, in the order of their submits."""
    shop = await Shop.open(conn, clock, "aging", pros=3)
    await shop.pro_jobs(5)
    free: list[UUID] = []
    for n in range(100):
        if n % 10 == 0:
            free.append(await shop.free_job(f"free{n}"))
        await shop.tick(1)
    while any(name.startswith("free") for name in await waiting(conn)):
        await shop.tick(1)
        assert len(shop.started) < 300
    served = [name for name in shop.started if name.startswith("free")]
    assert served == [f"free{n}" for n in range(0, 100, 10)]
    # Before the last: as many pro jobs as start in its 400 s, five more, and nine free ones.
    bound = timedelta(seconds=HELD_BACK + (5 + len(free)) * TICK)
    assert all([await waited(conn, job) <= bound for job in free])


@CONCURRENCIES
@PRO_ACCOUNTS
async def test_fair_starts_a_free_job_within_one_round(
    conn: asyncpg.Connection,
    clock: Clock,
    several: int,
    limits: tuple[int | None, int | None],
) -> None:
    """R-S9: a new waiting job is behind one attempt of each other account at most."""
    shop = await Shop.open(conn, clock, "fair", pros=several, limits=limits)
    await shop.pro_jobs(200)
    for _ in range(20):
        await shop.tick(1)
    await shop.free_job()
    assert await shop.ticks_until("free", arriving=1, most=100) <= several


@CONCURRENCIES
@PRO_ACCOUNTS
async def test_fair_gives_free_jobs_their_share_between_pro_ones(
    conn: asyncpg.Connection,
    clock: Clock,
    several: int,
    limits: tuple[int | None, int | None],
) -> None:
    """R-S9: weights 8 to 1: at most eight attempts of each pro account between two free ones."""
    shop = await Shop.open(conn, clock, "fair", pros=several, limits=limits)
    await shop.pro_jobs(200)
    await factory.submit_rows(conn, [{"kind": "q", "account": "free"}] * 10)
    await shop.ticks_until("free", arriving=1, most=100)
    for _ in range(4):
        between = await shop.ticks_until("free", arriving=1, most=100)
        assert abs(between - WEIGHT * several) <= several
    pro = [shop.started.count(name) for name in shop.pros]
    assert max(pro) - min(pro) <= 2 * WEIGHT, "and the pro customers share alike"


async def test_fair_cannot_be_circumvented_with_new_accounts(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """R-S9: each new account begins at the queue's virtual time, never in front of waiting jobs."""
    shop = await Shop.open(conn, clock, "fair", pros=3)
    await shop.pro_jobs(30)
    await shop.free_job()
    crowd: Sequence[str] = [f"new{n}" for n in range(60)]
    for n, name in enumerate(crowd):
        await conn.execute("select penstock.create_account($1, 'pro')", name)
        await factory.submit(conn, account=name)
        if await shop.tick(0) == "free":
            break
        assert n <= 3 + WEIGHT, f"still waiting behind {shop.started}"


@CONCURRENCIES
@PRO_ACCOUNTS
async def test_strict_lets_a_job_starve_as_documented(
    conn: asyncpg.Connection,
    clock: Clock,
    several: int,
    limits: tuple[int | None, int | None],
) -> None:
    """R-S9: only priority counts; the job starts when none is left in front."""
    shop = await Shop.open(conn, clock, "strict", pros=several, limits=limits)
    await shop.pro_jobs(2)
    job = await shop.free_job()
    for _ in range(60):
        assert await shop.tick(1) != "free"
    await clock.advance("7d", beats=True)  # however long it has waited
    await shop.pro_jobs(1)
    for _ in range(3):
        assert await shop.tick(0) != "free"
    assert await factory.status(conn, job) == "queued"
    assert await shop.tick(0) == "free"


async def waiting(conn: asyncpg.Connection) -> list[str]:
    rows = await conn.fetch(
        "select a.name from penstock.job j join penstock.account a on a.id = j.account_id"
        " where j.status = 'queued'"
    )
    return [row["name"] for row in rows]
