"""Journeys through the studio example: pictures for credits, and all that can go wrong."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import asyncpg
import pytest

from journeys.processes import Program
from journeys.studio_site import (
    CODE,
    ENDED,
    FOLDER,
    FREE,
    GROWTH,
    PATIENCE_SECONDS,
    PNG,
    PRO,
    PROMPT,
    STARTER,
    Customer,
    Shown,
    Studio,
    customer,
    running,
)
from waiting import eventually

pytestmark = pytest.mark.timeout(180)

CROWD = 20
CLICKS = 4
PRICES = {"standard": 1, "high": 3}
VIDEO_FACTOR = 5


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"fault": "refusal"}, "refused"),
    ({"fault": "empty", "what": "text"}, "broken"),
    ({"fault": "truncated_json"}, "broken"),
    ({"fault": "status", "code": 400}, "broken"),
]
AWAY = "The image model does not answer at the moment; it goes on by itself."
AGAIN = "That did not work yet; it is tried again by itself."
WHY_NONE = {"refused": "The model refused this prompt.", "broken": "Not one image came."}


@pytest.fixture
def studio(database: str, tmp_path: Path) -> Iterator[Studio]:
    with running(database, tmp_path) as site:
        yield site


def _urls(shown: Shown) -> list[str]:
    return [one["url"] for one in shown["pictures"] if one["state"] == "ready"]


async def test_from_the_order_to_the_history(studio: Studio) -> None:
    """G1, G5, G9, G12, G15, G18: the price is taken, pictures come one by one and stay."""
    async with customer(studio, STARTER) as ana:
        before = (await ana.has())["balance"]
        told = await ana.order(images=3, quality="high")
        assert told["new_balance"] == before - 9
        # Of the plan 30, and 20 less for the first one ever.
        assert (told["position"], told["priority"]) == (1, 10)
        waiting = await ana.look(told["job_id"])
        assert waiting["status"] == "queued"
        assert waiting["message"] == "You are #1 in the queue. Nobody is at work yet."
        assert waiting["credits"] == {"reserved": 9, "charged": 0, "refunded": 0}
        assert [one["state"] for one in waiting["pictures"]] == ["waiting"] * 3

        await studio.slow_after(1, seconds=3)
        studio.start_worker()
        some = await ana.sees(told["job_id"], "the first is there", status="generating", ready=1)
        assert some["message"] == "Generating your images… 1 of 3 so far."
        assert [one["state"] for one in some["pictures"]] == ["ready", "drawing", "waiting"]
        [first] = _urls(some)
        assert (await ana.picture(first)).startswith(PNG)

        await studio.command("/_heal")
        done = await ana.sees_end(told["job_id"])
        assert (done["status"], done["message"]) == ("completed", "Your 3 images are ready.")
        assert done["credits"] == {"reserved": 9, "charged": 9, "refunded": 0}
        assert len({await ana.picture(url) for url in _urls(done)}) == 3
        assert (await ana.has())["balance"] == before - 9
        [kept] = await ana.history()
        assert kept == done
        # The second one has the plan's priority, a film ten more.
        assert (await ana.order(images=1))["priority"] == 30
        assert (await ana.order(images=1, job_type="video"))["priority"] == 40


async def test_eight_images_are_two_jobs_shown_as_one(
    studio: Studio, conn: asyncpg.Connection
) -> None:
    """G11: they count once in the hour, and run side by side where the plan allows it."""
    async with customer(studio) as ana:
        told = await ana.order(images=8)
        assert (await ana.has())["submitted_last_hour"] == 1
        studio.start_worker()
        done = await ana.sees_end(told["job_id"])
        assert (done["status"], done["jobs"], done["ready"]) == ("completed", 2, 8)
        assert [one["number"] for one in done["pictures"]] == list(range(1, 9))
        assert len({await ana.picture(url) for url in _urls(done)}) == 8
        assert done["credits"] == {"reserved": 8, "charged": 8, "refunded": 0}
        assert len(await ana.history()) == 1
    rows = await conn.fetch("select images, credits_charged from studio.generation_jobs")
    assert [tuple(row) for row in rows] == [(4, 4), (4, 4)]


async def test_what_does_not_come_is_refunded(studio: Studio) -> None:
    """G3, G4: three of four are charged; and nothing where nothing came."""
    studio.start_worker()
    async with customer(studio) as ana:
        for fault, why in FAULTS:
            before = (await ana.has())["balance"]
            await studio.fault(**fault, times=1)
            told = await ana.order(images=4, quality="high")
            part = await ana.sees_end(told["job_id"])
            assert part["status"] == "completed"
            assert part["message"] == "3 of 4 images are ready. 3 credits were refunded."
            assert part["credits"] == {"reserved": 12, "charged": 9, "refunded": 3}
            [missing] = [one for one in part["pictures"] if one["state"] != "ready"]
            assert (missing["state"], missing["why"], missing["credits"]) == ("refunded", why, 3)
            assert (await ana.has())["balance"] == before - 9

            await studio.fault(**fault)
            told = await ana.order(images=2)
            none = await ana.sees_end(told["job_id"])
            assert none["message"] == f"{WHY_NONE[why]} 2 credits were refunded."
            assert (none["status"], none["ready"]) == ("failed", 0)
            assert none["credits"] == {"reserved": 2, "charged": 0, "refunded": 2}
            assert [one["why"] for one in none["pictures"]] == [why, why]
            assert (await ana.has())["balance"] == before - 9
            await studio.command("/_heal")


async def test_a_busy_model_is_waited_for(studio: Studio, conn: asyncpg.Connection) -> None:
    """What is drawn already is not asked for again, and nobody is charged twice."""
    async with customer(studio) as ana:
        studio.start_worker()
        await studio.fault(fault="storm", form="seconds", after=1, times=1, contains="boats")
        first = await ana.order(images=2)
        told = await ana.order(images=3, prompt="three boats")
        done = await ana.sees_end(told["job_id"])
        assert (done["status"], done["ready"]) == ("completed", 3)
        assert done["credits"]["charged"] == 3
        assert (await ana.sees_end(first["job_id"]))["ready"] == 2
    calls = await studio.report()
    assert [call["status"] for call in calls].count(429) == 1
    assert len(calls) == 6
    assert await conn.fetchval("select max(failures) from penstock.finished") == 0


async def test_a_model_that_is_away_fails_nobody(studio: Studio, conn: asyncpg.Connection) -> None:
    """It goes on by itself, after what is there already; no attempt is spent."""
    async with customer(studio) as ana:
        await studio.slow_after(1)
        studio.start_worker()
        told = await ana.order(images=3)
        await ana.sees(told["job_id"], "the first is there", ready=1)
        await studio.command("/_stop")
        sentence = f"1 of 3 is ready; the rest is #1 in the queue. {AWAY}"
        held = await ana.sees(told["job_id"], "it waits", message=sentence)
        assert (held["status"], held["position"]) == ("generating", 1)
        assert held["credits"]["reserved"] == 3
        assert [one["state"] for one in held["pictures"]] == ["ready", "waiting", "waiting"]
        await studio.command("/_heal")
        done = await ana.sees_end(told["job_id"])
        assert (done["status"], done["ready"]) == ("completed", 3)
        assert done["credits"] == {"reserved": 3, "charged": 3, "refunded": 0}
    assert await conn.fetchval("select max(failures) from penstock.finished") == 0


async def test_a_key_that_is_not_taken_stops_the_queue_and_loses_nothing(
    studio: Studio, conn: asyncpg.Connection
) -> None:
    """As the operator sees to it, all goes on where it was."""
    async with customer(studio) as ana:
        await studio.fault(fault="delay", by=0.05, times=2)
        await studio.fault(fault="status", code=401, times=1)
        studio.start_worker()
        told = await ana.order(images=3)
        held = await ana.sees(told["job_id"], "it waits", position=1, ready=2)
        assert held["message"].startswith("2 of 3 are ready; the rest is #1 in the queue.")
        assert held["message"].endswith((AGAIN, "The studio has a break."))
        await ana.cancel(told["job_id"])
        gone = await ana.sees_end(told["job_id"])
        assert gone["credits"] == {"reserved": 3, "charged": 2, "refunded": 1}
    assert await conn.fetchval("select max(failures) from penstock.finished") == 0


async def test_a_picture_that_always_breaks_the_model_costs_no_other_one(studio: Studio) -> None:
    """It is tried in each attempt; in the last one the others are drawn without it."""
    async with customer(studio) as ana:
        await studio.fault(fault="delay", by=0.05, times=1)
        await studio.fault(fault="status", code=500, times=2)
        await studio.fault(fault="reset", times=1)
        studio.start_worker()
        told = await ana.order(images=4)
        held = await ana.sees(told["job_id"], "it waits", position=1, ready=1)
        assert held["message"] == f"1 of 4 is ready; the rest is #1 in the queue. {AGAIN}"
        done = await ana.sees_end(told["job_id"])
        assert done["message"] == "3 of 4 images are ready. 1 credit was refunded."
        states = [one["state"] for one in done["pictures"]]
        assert states == ["ready", "refunded", "ready", "ready"]


async def test_cancelled_while_it_waits_to_be_tried_again(
    studio: Studio, conn: asyncpg.Connection
) -> None:
    """G13: what came before is kept and paid for, the rest is refunded."""
    async with customer(studio) as ana:
        before = (await ana.has())["balance"]
        await studio.fault(fault="delay", by=0.05, times=3)
        await studio.fault(fault="status", code=503)
        studio.start_worker()
        told = await ana.order(images=4, quality="high")
        await ana.sees(told["job_id"], "three are there, and it waits", ready=3, position=1)
        gone = await ana.cancel(told["job_id"])
        assert gone["message"] == (
            "Cancelled. 3 of 4 images had come and stay yours. 3 credits were refunded."
        )
        assert gone["credits"] == {"reserved": 12, "charged": 9, "refunded": 3}

        async def written_down() -> bool:
            return bool(await conn.fetchval("select exists (select from studio.generation_jobs)"))

        await eventually(written_down, "it is in the history", seconds=PATIENCE_SECONDS)
        [kept] = await ana.history()
        assert kept == gone
        assert len({await ana.picture(url) for url in _urls(kept)}) == 3
        assert (await ana.has())["balance"] == before - 9
    assert await conn.fetch("select * from penstock.check()") == []


async def test_an_order_of_two_jobs_is_cancelled_as_one(studio: Studio) -> None:
    """G11, G13: one job has ended, the other one waits; while it stops, that is said."""
    async with customer(studio, FREE) as ana:
        # The first four, and of the second job nothing yet.
        await studio.slow_after(4, seconds=2)
        studio.start_worker()
        told = await ana.order(images=8)
        some = await ana.sees(told["job_id"], "the first four are there", ready=4)
        assert some["status"] == "generating"
        stopping = await ana.cancel(told["job_id"])
        if stopping["status"] not in ENDED:
            assert stopping["stopping"] is True
            assert stopping["message"] == "Stopping; what has come stays yours."
            assert (stopping["position"], stopping["eta_seconds"]) == (None, None)
        gone = await ana.sees_end(told["job_id"])
        assert gone["message"] == (
            "Cancelled. 4 of 8 images had come and stay yours. 4 credits were refunded."
        )
        assert (gone["status"], gone["stopping"]) == ("cancelled", False)


async def test_the_rest_of_an_order_waits_while_another_runs(studio: Studio) -> None:
    """G5, G12: half of it has come, and somebody of a better plan goes first."""
    studio.env["STUDIO_CONCURRENCY"] = "1"
    async with customer(studio, FREE) as ana, customer(studio) as ben:
        await studio.fault(fault="delay", by=1, times=4)
        await studio.fault(fault="delay", by=8, times=1)
        studio.start_worker()
        told = await ana.order(images=8)
        await ana.sees(told["job_id"], "it has begun", ready=1)
        await ben.order(images=1)
        sentence = "4 of 8 are ready; the rest is #1 in the queue."
        others = "Others are being drawn; it starts after them."
        some = await ana.sees(told["job_id"], "it waits", message=f"{sentence} {others}")
        assert (some["status"], some["position"]) == ("generating", 1)
        assert [one["state"] for one in some["pictures"]] == ["ready"] * 4 + ["waiting"] * 4
        done = await ana.sees_end(told["job_id"])
        assert (done["status"], done["ready"]) == ("completed", 8)


async def test_cancel_while_it_waits_and_while_it_runs(studio: Studio) -> None:
    """G13: all comes back, or all but what has come; the slot is free for the next."""
    async with customer(studio, FREE) as ana:
        waiting = await ana.order(images=4)
        gone = await ana.cancel(waiting["job_id"])
        assert (gone["status"], gone["message"]) == (
            "cancelled",
            "Cancelled. 4 credits were refunded.",
        )
        assert (await ana.has())["balance"] == 10

        await studio.slow_after(2)
        studio.start_worker()
        told = await ana.order(images=4)
        await ana.sees(told["job_id"], "two are there", ready=2)
        await ana.cancel(told["job_id"])
        ended = await ana.sees_end(told["job_id"])
        assert ended["status"] == "cancelled"
        assert ended["credits"] == {"reserved": 4, "charged": 2, "refunded": 2}
        states = [one["state"] for one in ended["pictures"]]
        assert states == ["ready", "ready", "refunded", "refunded"]
        for url in _urls(ended):
            assert (await ana.picture(url)).startswith(PNG)
        assert (await ana.has())["balance"] == 8
        # Once more changes nothing.
        assert await ana.cancel(told["job_id"]) == ended
        await studio.command("/_heal")
        last = await ana.order(images=1)
        assert (await ana.sees_end(last["job_id"]))["status"] == "completed"

        async def written_down() -> bool:
            return [one["status"] for one in await ana.history()] == [
                "completed",
                "cancelled",
                "cancelled",
            ]

        await eventually(written_down, "all three are in the history")


async def test_a_plan_runs_so_many_at_once(studio: Studio, conn: asyncpg.Connection) -> None:
    """G6: free one, starter two, growth three, pro four; whoever waits is told their place."""
    studio.env["STUDIO_CONCURRENCY"] = "40"
    await studio.fault(fault="delay", by=0.1)
    async with AsyncExitStack() as stack:
        accounts = (FREE, STARTER, GROWTH, PRO)
        people = [await stack.enter_async_context(customer(studio, one)) for one in accounts]
        for person in people:
            for _ in range(6):
                await person.order(images=1)
        patient, waits = people[0], (await people[0].history())[0]["job_id"]
        studio.start_worker()
        most = dict.fromkeys(accounts, 0)
        told: set[str] = set()

        async def all_ended() -> bool:
            told.add((await patient.look(waits))["message"])
            for person in people:
                has = await person.has()
                most[person.account] = max(most[person.account], has["running"])
            return not await conn.fetchval("select exists (select from penstock.job)")

        await eventually(all_ended, "all have ended", seconds=PATIENCE_SECONDS)
    for account, limit in zip(accounts, (1, 2, 3, 4), strict=True):
        assert 1 <= most[account] <= limit, most
    assert any(one.endswith("It starts when another of your jobs ends.") for one in told), told


async def test_twenty_customers_click_at_once_and_the_books_balance(
    database: str, tmp_path: Path, conn: asyncpg.Connection
) -> None:
    """G1 to G4, G6, G7, G11, G13: what the page shows is what the ledger says, to the credit."""
    with running(database, tmp_path, model=False, customers=CROWD) as site:
        site.env["STUDIO_CONCURRENCY"] = "12"
        site.start_model("--latency", "0.01", "--slots", "8").wait_ready()
        for fault in (
            {"fault": "truncated_json", "chance": 0.12},
            {"fault": "refusal", "chance": 0.1},
            {"fault": "reset", "times": 2},
            {"fault": "status", "code": 500, "times": 2},
            {"fault": "empty", "what": "text", "chance": 0.05},
            {"fault": "storm", "form": "seconds", "after": 1, "times": 3},
        ):
            await site.fault(**fault)
        leaving = site.start_worker("leaving")
        site.start_worker("staying")
        async with AsyncExitStack() as stack:
            accounts = [f"customer-{number}" for number in range(1, CROWD + 1)]
            people = [await stack.enter_async_context(customer(site, one)) for one in accounts]
            for person in people[::3]:
                await person.become_operator()
            clicks = [_click(person, seed) for seed, person in enumerate(people)]
            answers = await asyncio.gather(*clicks)
            leaving.end()
            statuses = [status for told in answers for status in told]
            assert {201, 402} <= set(statuses) <= {201, 402, 429}, statuses
            orders = [one for person in people for one in await _all_ended(person)]
            assert len(orders) == statuses.count(201)
            assert {one["status"] for one in orders} == set(ENDED)
            assert any(0 < one["ready"] < one["images"] for one in orders), "no partial success"
            for person in people:
                await _assert_books_of(person, conn)
    assert await conn.fetch("select * from penstock.check()") == []
    kept = await conn.fetchval("select count(*) from studio.image")
    assert kept == sum(one["ready"] for one in orders)
    written = await conn.fetch(
        "select h.job_id, h.credits_reserved, h.credits_charged from studio.generation_jobs h"
        " except select r.job_id, r.reserved, r.charged from penstock.resolution r"
    )
    assert written == []
    assert await conn.fetchval("select count(*) from studio.generation_jobs") == (
        await conn.fetchval("select count(*) from penstock.resolution")
    )


async def _click(person: Customer, seed: int) -> list[int]:
    """Orders at the same moment, some of them clicked twice; one is cancelled, one buys."""
    random = Random(seed)

    async def once() -> tuple[int, str | None]:
        fields = {
            "job_type": random.choice(["tryon", "product", "freestyle", "workflow", "video"]),
            "images": random.randint(1, 8),
            "quality": random.choice(["standard", "standard", "high"]),
        }
        key = random.randbytes(12).hex()
        twice = random.choice([1, 2])
        both = await asyncio.gather(
            *(person.press_generate(key=key, **fields) for _ in range(twice))
        )
        assert len({one.status_code for one in both}) == 1 or 402 in {
            one.status_code for one in both
        }
        found = {one.json().get("job_id") for one in both if one.status_code == 201}
        assert len(found) <= 1, "a double click is one job"
        [status, *_] = sorted(one.status_code for one in both)
        return status, next(iter(found), None)

    told = await asyncio.gather(*(once() for _ in range(CLICKS)))
    if seed % 3 == 0:
        await asyncio.gather(*(person.buy(f"purchase-{seed}") for _ in range(3)))
    if seed % 2 == 0 and (jobs := [job for _, job in told if job]):
        await person.cancel(random.choice(jobs))
    return [status for status, _ in told]


async def _all_ended(person: Customer) -> list[Shown]:
    found: list[Shown] = []

    async def ended() -> bool:
        found[:] = await person.history()
        return all(one["status"] in ENDED for one in found)

    await eventually(ended, f"all of {person.account} have ended", seconds=PATIENCE_SECONDS)
    return found


async def _assert_books_of(person: Customer, conn: asyncpg.Connection) -> None:
    """Balance, history and pictures as the page shows them, against Penstock's books."""
    orders = await person.history()
    has = await person.has()
    account = await conn.fetchrow(
        "select a.id, a.balance, (select sum(l.amount) from penstock.ledger l"
        " where l.account_id = a.id) as summed from penstock.account a where a.name = $1",
        person.account,
    )
    assert account is not None
    assert has["balance"] == account["balance"] == account["summed"]
    granted = await conn.fetchval(
        "select sum(amount) from penstock.ledger where account_id = $1 and kind = 'grant'",
        account["id"],
    )
    charged = sum(one["credits"]["charged"] for one in orders)
    assert granted - charged == has["balance"]
    for one in orders:
        jobs = await conn.fetchval(
            "select job_ids from studio.generation where id = $1::text::uuid", one["job_id"]
        )
        settled = await conn.fetchrow(
            "select sum(reserved) as reserved, sum(charged) as charged, sum(refunded) as refunded"
            " from penstock.resolution where job_id = any ($1)",
            jobs,
        )
        assert settled is not None
        assert one["credits"] == dict(settled)
        moved = await conn.fetchval(
            "select -sum(amount) from penstock.ledger where job_id = any ($1)", jobs
        )
        assert moved == one["credits"]["charged"]
        each = PRICES[one["quality"]] * (VIDEO_FACTOR if one["job_type"] == "video" else 1)
        assert one["credits"]["reserved"] == each * one["images"]
        assert one["credits"]["charged"] == each * one["ready"] == each * len(_urls(one))
        assert one == await person.look(one["job_id"])
        for url in _urls(one):
            assert (await person.picture(url)).startswith(PNG)


async def test_one_command_starts_everything_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    """As a newcomer runs it, in an empty folder: no server, no settings, no set-up."""
    site = Studio("", tmp_path)
    everything = Program(
        [str(FOLDER), "--port", str(site.web_port)],
        {**dict.fromkeys(site.env, ""), "MODEL_SECONDS": "0.1", "STUDIO_OPERATOR_CODE": CODE},
        tmp_path / "everything.log",
        port=site.web_port,
        cwd=tmp_path,
    )
    site.programs.append(everything)

    async def announced() -> bool:
        return f"http://127.0.0.1:{site.web_port}/operator?code={CODE}" in everything.printed

    try:
        everything.wait_ready()
        await eventually(announced, "the addresses are printed", seconds=PATIENCE_SECONDS)
        async with customer(site, FREE) as ana:
            told = await ana.order(images=2)
            assert (await ana.sees_end(told["job_id"]))["ready"] == 2
            await ana.become_operator()
            assert (await ana.buy())["balance"] == 18
            fault = {"fault": "broken"}
            answer = await ana.client.post(
                "/api/operator/fault", json=fault, headers={"X-Requested-With": "studio"}
            )
            assert answer.json() == {"ok": True}
            told = await ana.order(images=2, prompt=PROMPT)
            assert (await ana.sees_end(told["job_id"]))["ready"] == 1
    finally:
        code = everything.end(signal.SIGINT)
        site.end()
    assert code == 0, everything.printed
    assert everything.printed.endswith("All has ended.\n")
    assert "Traceback" not in everything.printed
    for number in re.findall(r"is process (\d+)", everything.printed):
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)
