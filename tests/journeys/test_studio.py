"""Journeys through the studio example: pictures for credits, and all that can go wrong."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from journeys.processes import LOOK_SECONDS, Program, end_workers
from journeys.site import PATIENCE_SECONDS
from journeys.studio_site import (
    CODE,
    ENDED,
    FOLDER,
    FREE,
    GROWTH,
    PNG,
    PRO,
    PROMPT,
    STARTER,
    Studio,
    customer,
    running,
    urls_of,
)
from support.waiting import eventually

pytestmark = pytest.mark.timeout(180)

FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"fault": "refusal"}, "refused"),
    ({"fault": "empty", "what": "text"}, "broken"),
    ({"fault": "truncated_json"}, "broken"),
    ({"fault": "status", "code": 400}, "broken"),
]
AWAY = "The image model does not answer at the moment; it goes on by itself."
AGAIN = "That did not work yet; it is tried again by itself."
WHY_NONE = {"refused": "The model refused this prompt.", "broken": "Not one image came."}


@pytest.fixture(scope="module")
def site(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    with running(shared_database, tmp_path_factory.mktemp("studio"), customers=48) as site:
        yield site


@pytest.fixture
def closed(site: Studio) -> Iterator[Studio]:
    """Web app and model, the same for all tests; each has customers of its own, and its worker."""
    end_workers(site.programs)
    usual = dict(site.env)
    yield site
    site.env = usual
    try:
        site.settle()
    finally:
        end_workers(site.programs)


@pytest.fixture
def studio(site: Studio) -> Iterator[Studio]:
    """With a worker, too."""
    if not any(one.port is None and one.is_running for one in site.programs):
        site.start_worker()
    yield site
    site.settle()


async def _failures(conn: asyncpg.Connection, account: str) -> int | None:
    """The most attempts that a job of theirs has lost."""
    found: int | None = await conn.fetchval(
        "select max(f.failures) from penstock.finished f"
        " join penstock.account a on a.id = f.account_id where a.name = $1",
        account,
    )
    return found


async def test_from_the_order_to_the_history(closed: Studio) -> None:
    """G1, G5, G9, G12, G15, G18: the price is taken, pictures come one by one and stay."""
    async with customer(closed, closed.newcomer(STARTER)) as ana:
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

        await closed.slow_after(1, seconds=3)
        closed.start_worker()
        some = await ana.sees(told["job_id"], "the first is there", status="generating", ready=1)
        assert some["message"] == "Generating your images… 1 of 3 so far."
        assert [one["state"] for one in some["pictures"]] == ["ready", "drawing", "waiting"]
        [first] = urls_of(some)
        assert (await ana.picture(first)).startswith(PNG)

        await closed.command("/_heal")
        done = await ana.sees_end(told["job_id"])
        assert (done["status"], done["message"]) == ("completed", "Your 3 images are ready.")
        assert done["credits"] == {"reserved": 9, "charged": 9, "refunded": 0}
        assert len({await ana.picture(url) for url in urls_of(done)}) == 3
        assert (await ana.has())["balance"] == before - 9
        [kept] = await ana.history()
        assert kept == done
        # The second one has the plan's priority, a film ten more.
        assert (await ana.order(images=1))["priority"] == 30
        assert (await ana.order(images=1, job_type="video"))["priority"] == 40


async def test_eight_images_are_two_jobs_shown_as_one(
    studio: Studio, shared_conn: asyncpg.Connection
) -> None:
    """G7, G11: both count in the hour, and they run side by side where the plan allows it."""
    async with customer(studio, studio.newcomer()) as ana:
        told = await ana.order(images=8)
        assert (await ana.has())["submitted_last_hour"] == 2
        done = await ana.sees_end(told["job_id"])
        assert (done["status"], done["jobs"], done["ready"]) == ("completed", 2, 8)
        assert [one["number"] for one in done["pictures"]] == list(range(1, 9))
        assert len({await ana.picture(url) for url in urls_of(done)}) == 8
        assert done["credits"] == {"reserved": 8, "charged": 8, "refunded": 0}
        assert len(await ana.history()) == 1
    rows = await shared_conn.fetch(
        "select images, credits_charged from studio.generation_jobs where account = $1", ana.account
    )
    assert [tuple(row) for row in rows] == [(4, 4), (4, 4)]


async def test_what_does_not_come_is_refunded(studio: Studio) -> None:
    """G3, G4: three of four are charged; and nothing where nothing came."""
    async with customer(studio, studio.newcomer()) as ana:
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


async def test_a_busy_model_is_waited_for(studio: Studio, shared_conn: asyncpg.Connection) -> None:
    """What is drawn already is not asked for again, and nobody is charged twice."""
    asked_before = len(await studio.calls())
    async with customer(studio, studio.newcomer()) as ana:
        await studio.fault(fault="storm", form="seconds", after=1, times=1, contains="boats")
        first = await ana.order(images=2)
        told = await ana.order(images=3, prompt="three boats")
        done = await ana.sees_end(told["job_id"])
        assert (done["status"], done["ready"]) == ("completed", 3)
        assert done["credits"]["charged"] == 3
        assert (await ana.sees_end(first["job_id"]))["ready"] == 2
    calls = (await studio.calls())[asked_before:]
    assert [call["status"] for call in calls].count(429) == 1
    assert len(calls) == 6
    assert await _failures(shared_conn, ana.account) == 0


async def test_a_model_that_is_away_fails_nobody(
    studio: Studio, shared_conn: asyncpg.Connection
) -> None:
    """It goes on by itself, after what is there already; no attempt is spent."""
    async with customer(studio, studio.newcomer()) as ana:
        await studio.slow_after(1)
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
    assert await _failures(shared_conn, ana.account) == 0


async def test_a_key_that_is_not_taken_stops_the_queue_and_loses_nothing(
    studio: Studio, shared_conn: asyncpg.Connection
) -> None:
    """As the operator sees to it, all goes on where it was."""
    async with customer(studio, studio.newcomer()) as ana:
        await studio.fault(fault="delay", by=0.05, times=2)
        await studio.fault(fault="status", code=401, times=1)
        told = await ana.order(images=3)
        held = await ana.sees(told["job_id"], "it waits", position=1, ready=2)
        assert held["message"].startswith("2 of 3 are ready; the rest is #1 in the queue.")
        assert held["message"].endswith((AGAIN, "The studio has a break."))
        await ana.cancel(told["job_id"])
        gone = await ana.sees_end(told["job_id"])
        assert gone["credits"] == {"reserved": 3, "charged": 2, "refunded": 1}
    assert await _failures(shared_conn, ana.account) == 0


async def test_a_picture_that_always_breaks_the_model_costs_no_other_one(studio: Studio) -> None:
    """It is tried in each attempt; in the last one the others are drawn without it."""
    async with customer(studio, studio.newcomer()) as ana:
        await studio.fault(fault="delay", by=0.05, times=1)
        await studio.fault(fault="status", code=500, times=2)
        await studio.fault(fault="reset", times=1)
        told = await ana.order(images=4)
        held = await ana.sees(told["job_id"], "it waits", position=1, ready=1)
        assert held["message"] == f"1 of 4 is ready; the rest is #1 in the queue. {AGAIN}"
        done = await ana.sees_end(told["job_id"])
        assert done["message"] == "3 of 4 images are ready. 1 credit was refunded."
        states = [one["state"] for one in done["pictures"]]
        assert states == ["ready", "refunded", "ready", "ready"]


async def test_cancelled_while_it_waits_to_be_tried_again(
    studio: Studio, shared_conn: asyncpg.Connection
) -> None:
    """G13: what came before is kept and paid for, the rest is refunded."""
    async with customer(studio, studio.newcomer()) as ana:
        before = (await ana.has())["balance"]
        await studio.fault(fault="delay", by=0.05, times=3)
        await studio.fault(fault="status", code=503)
        told = await ana.order(images=4, quality="high")
        await ana.sees(told["job_id"], "three are there, and it waits", ready=3, position=1)
        gone = await ana.cancel(told["job_id"])
        assert gone["message"] == (
            "Cancelled. 3 of 4 images had come and stay yours. 3 credits were refunded."
        )
        assert gone["credits"] == {"reserved": 12, "charged": 9, "refunded": 3}

        async def written_down() -> bool:
            return bool(
                await shared_conn.fetchval(
                    "select exists (select from studio.generation_jobs where account = $1)",
                    ana.account,
                )
            )

        await eventually(written_down, "it is in the history", seconds=PATIENCE_SECONDS)
        [kept] = await ana.history()
        assert kept == gone
        assert len({await ana.picture(url) for url in urls_of(kept)}) == 3
        assert (await ana.has())["balance"] == before - 9
    assert await shared_conn.fetch("select * from penstock.check()") == []


async def test_an_order_of_two_jobs_is_cancelled_as_one(studio: Studio) -> None:
    """G11, G13: one job has ended, the other one waits; while it stops, that is said."""
    async with customer(studio, studio.newcomer(FREE)) as ana:
        # The first four, and of the second job nothing yet.
        await studio.slow_after(4, seconds=2)
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


async def test_the_rest_of_an_order_waits_while_another_runs(closed: Studio) -> None:
    """G5, G12: half of it has come, and somebody of a better plan goes first."""
    closed.env["STUDIO_CONCURRENCY"] = "1"
    async with (
        customer(closed, closed.newcomer(FREE)) as ana,
        customer(closed, closed.newcomer()) as ben,
    ):
        await closed.fault(fault="delay", by=1, times=4)
        await closed.fault(fault="delay", by=8, times=1)
        closed.start_worker()
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


async def test_cancel_while_it_waits_and_while_it_runs(closed: Studio) -> None:
    """G13: all comes back, or all but what has come; the slot is free for the next."""
    async with customer(closed, closed.newcomer(FREE)) as ana:
        waiting = await ana.order(images=4)
        gone = await ana.cancel(waiting["job_id"])
        assert (gone["status"], gone["message"]) == (
            "cancelled",
            "Cancelled. 4 credits were refunded.",
        )
        assert (await ana.has())["balance"] == 10

        await closed.slow_after(2)
        closed.start_worker()
        told = await ana.order(images=4)
        await ana.sees(told["job_id"], "two are there", ready=2)
        await ana.cancel(told["job_id"])
        ended = await ana.sees_end(told["job_id"])
        assert ended["status"] == "cancelled"
        assert ended["credits"] == {"reserved": 4, "charged": 2, "refunded": 2}
        states = [one["state"] for one in ended["pictures"]]
        assert states == ["ready", "ready", "refunded", "refunded"]
        for url in urls_of(ended):
            assert (await ana.picture(url)).startswith(PNG)
        assert (await ana.has())["balance"] == 8
        # Once more changes nothing.
        assert await ana.cancel(told["job_id"]) == ended
        await closed.command("/_heal")
        last = await ana.order(images=1)
        assert (await ana.sees_end(last["job_id"]))["status"] == "completed"

        async def written_down() -> bool:
            return [one["status"] for one in await ana.history()] == [
                "completed",
                "cancelled",
                "cancelled",
            ]

        await eventually(written_down, "all three are in the history", seconds=PATIENCE_SECONDS)


async def test_a_plan_runs_so_many_at_once(closed: Studio, shared_conn: asyncpg.Connection) -> None:
    """G6: free one, starter two, growth three, pro four; whoever waits is told their place."""
    closed.env["STUDIO_CONCURRENCY"] = "40"
    await closed.fault(fault="delay", by=0.1)
    async with AsyncExitStack() as stack:
        accounts = [closed.newcomer(one) for one in (FREE, STARTER, GROWTH, PRO)]
        people = [await stack.enter_async_context(customer(closed, one)) for one in accounts]
        for person in people:
            for _ in range(6):
                await person.order(images=1)
        patient, waits = people[0], (await people[0].history())[0]["job_id"]
        closed.start_worker()
        most = dict.fromkeys(accounts, 0)
        told: set[str] = set()

        async def all_ended() -> bool:
            told.add((await patient.look(waits))["message"])
            for person in people:
                has = await person.has()
                most[person.account] = max(most[person.account], has["running"])
            return not await shared_conn.fetchval("select exists (select from penstock.job)")

        await eventually(all_ended, "all have ended", seconds=PATIENCE_SECONDS, poll=LOOK_SECONDS)
    for account, limit in zip(accounts, (1, 2, 3, 4), strict=True):
        assert 1 <= most[account] <= limit, most
    assert any(one.endswith("It starts when another of your jobs ends.") for one in told), told


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
    assert everything.printed.endswith("All parts have stopped.\n")
    assert "Traceback" not in everything.printed
    for number in re.findall(r"is process (\d+)", everything.printed):
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)
