"""Whole systems for pages to show: with nothing in it, with five jobs, with a day's work and forty
queues, and while a provider is away."""

import random
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from browser.scene import Scene
from support import factory

FAULTS = (
    ("timeout", "TimeoutError: no answer within 120 s"),
    ("unavailable", "the model at 10.0.0.7:11434 refuses connections"),
    ("bug", "KeyError: 'rubric'"),
    ("bad_output", "the answer is no JSON: it ends in the middle of a word"),
    ("rate_limited", "the provider asks to wait 20 s"),
)
# Long words without a blank, as accounts and topics have them: what breaks narrow pages.
LONG = "an-account-with-a-name-that-somebody-has-made-as-long-as-it-may-well-be-" + "x" * 40


@dataclass(frozen=True)
class System:
    """What stands for all others where a page shows one thing."""

    job: UUID
    queue: str
    account: str


async def empty(scene: Scene) -> System | None:
    """As it is after `penstock migrate up`."""
    assert scene
    return None


async def five_jobs(scene: Scene) -> System:
    await scene.plan("free", concurrency=2)
    await scene.account("anna", 100)
    await scene.queue("essays", concurrency=2)
    await scene.queue("scanner")
    async with scene.earlier(minutes=12):
        await scene.failed("essays", account="anna", cls="bug", message="KeyError: 'rubric'")
        await scene.succeeded("essays", account="anna", result={"grade": "B", "points": 12})
    running = await scene.running(
        "essays",
        account="anna",
        topic="essay-7",
        stage="reading",
        label="Reading paragraph 2",
        progress={"done": 1, "total": 4, "partial": {"summary": "A walk along the river."}},
        chunks=("The essay ", "describes "),
    )
    await scene.stale("scanner", account="anna")
    await scene.queued("essays", account="anna", price=3, payload={"text": "Once upon a time"})
    await scene.count_hours()
    return System(running, "essays", "anna")


async def large(scene: Scene) -> System:
    """A day of work in forty queues, most of them at rest, and hundreds of jobs that wait."""
    chance = random.Random(7)
    await scene.plan("free", concurrency=3, per_hour=1_000)
    await scene.plan("school", priority=-10, default=False)
    for account in ("anna", "ben", LONG):
        await scene.account(account, 500)
    for n in range(39):
        await scene.queue(f"queue-{n:02}", concurrency=1 + n % 5)
    await scene.queue("essays", concurrency=20, rate="100/m", burst=100)
    for hour in range(24, 0, -1):
        async with scene.earlier(hours=hour - 0.5):
            await _an_hour(scene, chance)
    await scene.beat()
    await scene.many(300, "essays", account="anna", topic="term-paper")
    await scene.many(60, "queue-00", account=LONG, topic=LONG)
    running = await scene.running(
        "essays", account="ben", topic="essay-7", stage="grading", progress={"done": 3, "total": 9}
    )
    for n in range(8):
        await scene.running(f"queue-{n:02}", account=LONG if n == 3 else None, stage="reading")
    for _ in range(5):
        await scene.retrying("essays", account="ben")
        await scene.scheduled("queue-05")
        await scene.awaiting("elsewhere")
    await scene.cancelled("essays", account="ben")
    await scene.failed("essays", account="ben", message="data:image/png;base64," + "A" * 120)
    await scene.stale("scanner", minutes=9, account="ben")
    await scene.conn.execute("select penstock.pause_queue('queue-07')")
    await scene.count_hours()
    return System(running, "essays", "anna")


async def at_work(scene: Scene) -> System:
    """A school's afternoon: what the pictures of the documents show."""
    chance = random.Random(7)
    scene.usual_worker = "gpu-1"
    await scene.plan("free", concurrency=2, per_hour=30)
    await scene.plan("school", priority=-10, concurrency=10, default=False)
    for account in ("anna", "ben", "clara", "dora"):
        await scene.account(account, 50)
    queues: dict[str, dict[str, Any]] = {
        "essays": {"concurrency": 4},
        "feedback": {"concurrency": 2, "rate": "60/m", "burst": 60},
        "scanner": {"concurrency": 3, "stale_after_seconds": 120, "timeout_seconds": 1_800},
        "images": {"concurrency": 1},
    }
    for name, options in queues.items():
        await scene.queue(name, **options)
    for hour in range(24, 0, -1):
        busy = 9 if hour < 12 else 3
        for _ in range(chance.randint(2, busy)):
            async with scene.earlier(hours=hour - 0.4):
                row = await scene.started(chance.choice(["essays", "feedback", "images"]))
            async with scene.earlier(hours=hour - 0.4, seconds=-chance.uniform(3, 40)):
                await scene.end(row)
        if chance.random() < 0.4:
            cls, message = chance.choice(FAULTS)
            async with scene.earlier(hours=hour - 0.4):
                await scene.failed("feedback", account="ben", cls=cls, message=message)
    await scene.beat()
    for n, account in enumerate(("anna", "ben", "clara", "dora") * 2):
        async with scene.earlier(minutes=30 - 3 * n):
            await scene.queued(("essays", "images")[n % 2], account=account, topic=f"essay-{n}")
    await scene.stale("scanner", account="clara", topic="left-pad", minutes=5)
    async with scene.earlier(minutes=3):
        timeout = "TimeoutError: no answer within 120 s"
        await scene.retrying("feedback", account="ben", message=timeout)
        await scene.failed("feedback", account="dora", cls="bad_output", message=FAULTS[3][1])
    async with scene.earlier(minutes=2):
        await scene.cancelled("feedback", account="ben", topic="essay-3")
        await scene.running("scanner", account="dora", stage="TIER2", label="Tier 2 scanning")
    async with scene.earlier(seconds=48):
        job = await scene.running(
            "essays",
            account="anna",
            topic="essay-7",
            price=2,
            stage="reading",
            label="Reading paragraph 2",
            progress={"done": 1, "total": 4, "partial": {"spelling": "12 of 15"}},
            chunks=("The essay describes a walk ", "along the river in autumn. "),
        )
    async with scene.earlier(seconds=20):
        await scene.succeeded("feedback", account="ben", result={"text": "Well argued."})
    await scene.count_hours()
    return System(job, "essays", "anna")


async def outage(scene: Scene) -> System:
    """A provider is away, another one refuses its key; what waits for them waits."""
    found = await five_jobs(scene)
    await scene.outage("llama")
    await scene.outage("gpt", cls="auth")
    await scene.many(30, "llama", account="anna")
    held = await scene.queued("llama", account="anna", topic="essay-7")
    return System(held, "llama", found.account)


async def _an_hour(scene: Scene, chance: random.Random) -> None:
    """Some that succeed and a few that do not, a few at once."""
    worker = await scene.worker()
    await factory.submit_rows(scene.conn, [{"kind": "queue-01"}] * chance.randint(4, 14))
    started = await factory.claim(scene.conn, worker, "queue-01", 1)
    while started:
        await factory.finish(scene.conn, worker, started)
        started = await factory.claim(scene.conn, worker, "queue-01", 5)
    cls, message = chance.choice(FAULTS)
    await scene.failed("essays", account="ben", cls=cls, message=message)
    await scene.succeeded("essays", account="anna", result={"grade": "A"})
