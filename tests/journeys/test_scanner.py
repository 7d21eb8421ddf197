"""Journeys through the scanner example: what hangs or dies is noticed, told and started again."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from journeys.processes import Program
from journeys.scanner_site import CODE, FOLDER, Author, Scanner, author, running
from journeys.site import PATIENCE_SECONDS
from support.clock import Clock
from support.waiting import eventually

pytestmark = pytest.mark.timeout(180)

PUBLISHED = "Nothing was found: your package is published."
OURS = (
    "That is our fault: nothing is wrong with your package as far as we know. "
    "You can submit it again."
)
EXHAUSTED = (
    f"We could not scan your package: the scan broke off, and was started again 3 times. {OURS}"
)


SCALE = 0.02
STALE_SECONDS, STUCK_SECONDS = (minutes * 60 * SCALE for minutes in (3, 5))


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.fixture(scope="module")
def site(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scanner]:
    """Of the minutes that are meant, each takes a second and a little."""
    with running(shared_database, tmp_path_factory.mktemp("scanner"), scale=SCALE) as site:
        yield site


@pytest.fixture
def scanner(site: Scanner) -> Iterator[Scanner]:
    """The web app, the same for all tests; workers when the test starts them."""
    site.settle()
    yield site
    site.settle()


async def _row(conn: asyncpg.Connection, submission: str) -> dict[str, Any]:
    found = await conn.fetchrow(
        "select state, reason, findings::text as findings, scanned_in_start, ended_at is not null"
        " as ended from scanner.submission where id = $1",
        submission,
    )
    assert found is not None
    return dict(found)


async def test_from_the_submission_to_its_end_in_every_way(
    scanner: Scanner, shared_conn: asyncpg.Connection
) -> None:
    """S1, S4, S5, S6, S7: four scans side by side, each with its stages, its news and its end."""
    async with author(scanner) as ana:
        made = {
            way: await ana.submit(way)
            for way in ("slow_tier1", "hang_tier1_once", "normal", "findings")
        }
        made["bad"] = await ana.submit(text="all well\ncurl example.com/x | sudo sh\n")
        waits = await ana.look(made["normal"])
        assert (waits["state"], waits["position"]) == ("RECEIVED", 3)
        assert waits["message"] == (
            "We have your package. It is #3 in the queue. "
            "Nobody is at work at the moment; it goes on by itself."
        )
        scanner.start_worker(SCANNER_TIER_SECONDS="1.2")  # each stage long enough to be seen
        told = dict(
            zip(
                made,
                await asyncio.gather(*(ana.follow(one) for one in made.values())),
                strict=True,
            )
        )

    seen, end = told["normal"]
    states = [state for state, _ in groupby(seen, key=lambda one: one[0])]
    assert states == ["RECEIVED", "TIER1_SCANNING", "TIER2_SCANNING", "PUBLISHED"]
    assert (end["message"], end["reason"], end["fault"]) == (PUBLISHED, None, None)
    assert await _row(shared_conn, made["normal"]) == {
        "state": "PUBLISHED",
        "reason": None,
        "findings": "[]",
        "scanned_in_start": 1,
        "ended": True,
    }

    # Late, and then by itself on time again: nothing was started anew.
    seen, end = told["slow_tier1"]
    late = seen.index(("TIER1_SCANNING", True, 0))
    assert seen[late : late + 3] == [
        ("TIER1_SCANNING", True, 0),
        ("TIER1_SCANNING", False, 0),
        ("TIER2_SCANNING", False, 0),
    ]
    assert (end["state"], len(end["attempts"])) == ("PUBLISHED", 1)

    # Late, started again, and the second start brings it to its end.
    seen, end = told["hang_tier1_once"]
    assert ("TIER1_SCANNING", True, 0) in seen
    assert seen[-1] == ("PUBLISHED", False, 1)
    assert [(one["outcome"], one["classification"]) for one in end["attempts"]] == [
        ("stuck", "stalled"),
        ("succeeded", None),
    ]
    assert (await _row(shared_conn, made["hang_tier1_once"]))["scanned_in_start"] == 2

    for end, rule, line in (
        (told["findings"][1], "ordered", None),
        (told["bad"][1], "pipe-to-shell", 2),
    ):
        assert (end["state"], end["reason"], end["fault"]) == ("REJECTED", "findings", "author")
        assert end["message"] == "The scan found one thing."
        [finding] = end["findings"]
        assert (finding["rule"], finding["line"]) == (rule, line)


async def test_exactly_3_recoveries_of_a_scan_that_always_hangs(
    scanner: Scanner, shared_conn: asyncpg.Connection, shared_clock: Clock
) -> None:
    """S2, S3, S6, S7, S8, S10, S11: the budget, its waits, and what the operator sees of it."""
    scanner.start_worker(SCANNER_TIER_SECONDS="0")
    async with author(scanner) as ana:
        # The first scan of a worker begins when its processes can be made.
        await ana.sees_end(await ana.submit())
        before = await _stalled(ana)
        job = await ana.submit("hang_tier1")
        await ana.sees(job, "it is being scanned", state="TIER1_SCANNING")
        await shared_clock.advance(STALE_SECONDS, beats=True)
        late = await ana.sees(job, "it is late", stale=True)
        said = late["staleness"]
        assert said["staleStage"] == late["state"] == "TIER1_SCANNING"
        assert "It was last at: Tier 1 scanning." in said["message"]
        assert late["recovery"] == {
            "count": 0,
            "max": 3,
            "lastRetryAt": None,
            "nextRetryAfter": None,
        }
        [stuck] = (await ana.operator_sees("status"))["stuck"]
        assert (stuck["submissionId"], stuck["name"]) == (job, "tidy-logs")
        assert (stuck["stage"], stuck["classification"]) == ("TIER1_SCANNING", "stalled")
        assert stuck["since"] == said["staleSince"]

        # The first one at once, the others not before their time.
        await shared_clock.advance(STUCK_SECONDS - STALE_SECONDS, beats=True)
        await ana.sees(job, "the first", count=1, state="TIER1_SCANNING")
        for count, wait in ((2, 10), (3, 60)):
            await shared_clock.advance(STUCK_SECONDS, beats=True)
            await _waits(ana, shared_conn, job, count, wait)
            await shared_clock.advance(wait, beats=True)
            await ana.sees(job, f"start {count + 1}", count=count, next_at=None)
        await shared_clock.advance(STUCK_SECONDS, beats=True)
        end = await ana.sees_end(job)
        assert (end["state"], end["reason"]) == ("REJECTED", "stuck_exhausted")
        assert (end["fault"], end["message"]) == ("platform", EXHAUSTED)
        assert (end["staleness"]["stale"], end["recovery"]["count"]) == (False, 3)
        assert len(end["attempts"]) == 4

        async def told() -> bool:
            return (await _row(shared_conn, job))["ended"] is True

        await eventually(told, "our row has heard of it", seconds=PATIENCE_SECONDS)
        assert (await _row(shared_conn, job))["reason"] == "stuck_exhausted"

        after = await _stalled(ana)
        assert after["count"] - before["count"] == 4
        assert after["totalDurationMs"] - before["totalDurationMs"] > 4 * STUCK_SECONDS * 1000
        throughput = (await ana.operator_sees("metrics?hours=2"))["throughput"]
        assert [one["count"] for one in throughput if one["outcome"] == "failed"] == [1]
        assert (await ana.operator_sees("status"))["stuck"] == []

        # Never a fifth start, however long one waits.
        await shared_clock.advance("1h", beats=True)
        again = await asyncio.gather(
            *(ana.client.post(f"/api/v1/submissions/{job}/again") for _ in range(3))
        )
        [new] = {one.json()["id"] for one in again}
        assert sorted(one.status_code for one in again) == [200, 200, 201]
        assert (await ana.sees_end(new))["message"] == PUBLISHED
        end = await ana.look(job)
        assert (end["recovery"]["count"], len(end["attempts"])) == (3, 4)
        assert end["again"] == new
        other = await ana.client.post(f"/api/v1/submissions/{new}/again")
        assert other.status_code == 409


async def _stalled(ana: Author) -> dict[str, int]:
    """How many starts had no news for too long, in all hours, and how long they took."""
    found = (await ana.operator_sees("metrics"))["timeouts"]
    stalled = [one for one in found if one["classification"] == "stalled"]
    return {name: sum(one[name] for one in stalled) for name in ("count", "totalDurationMs")}


async def _waits(ana: Author, conn: asyncpg.Connection, job: str, count: int, wait: int) -> None:
    """It rests until the said moment, and is not touched inside the window."""
    rests = await ana.sees(job, f"recovery {count} rests", count=count)
    last, then = rests["recovery"]["lastRetryAt"], rests["recovery"]["nextRetryAfter"]
    assert _moment(then) - _moment(last) == timedelta(seconds=wait)
    assert rests["message"] == "The scan was broken off in tier 1 and starts again by itself."
    assert rests["staleness"]["stale"] is False
    [stuck] = (await ana.operator_sees("status"))["stuck"]
    assert stuck["recovery"] == {
        "count": count,
        "max": 3,
        "lastRetryAt": last,
        "nextRetryAfter": then,
    }
    assert await conn.fetchval("select count(*) from penstock.recover_jobs()") == 0
    assert len((await ana.look(job))["attempts"]) == count


async def test_two_recoveries_at_once_spend_one(
    scanner: Scanner,
    shared_database: str,
    shared_conn: asyncpg.Connection,
    shared_clock: Clock,
) -> None:
    """S2, S3, S13: a scan that kills its worker each time, found by six of us at once each time."""
    finders = await asyncio.gather(*(asyncpg.connect(shared_database) for _ in range(6)))

    async def dead() -> bool:
        return worker.popen.poll() is not None

    async with author(scanner) as ana:
        job = await ana.submit("crash_tier1")
        for start in range(1, 5):
            worker = scanner.start_worker(f"worker-{start}")
            await eventually(dead, "it has killed its worker", seconds=PATIENCE_SECONDS)
            assert worker.popen.poll() == -signal.SIGKILL

            async def found() -> bool:
                # Its sessions may outlive it for a moment.
                settled = await asyncio.gather(
                    *(one.fetch("select * from penstock.recover_jobs()") for one in finders)
                )
                done = [row for rows in settled for row in rows if row["verdict"] == "done"]
                assert len(done) <= 1
                return bool(done)

            await eventually(found, "it is found", seconds=PATIENCE_SECONDS)
            seen = await ana.look(job)
            assert (seen["recovery"]["count"], len(seen["attempts"])) == (min(start, 3), start)
            await shared_clock.advance("61s")
        end = await ana.look(job)
        assert (end["state"], end["reason"]) == ("REJECTED", "stuck_exhausted")
        assert {one["classification"] for one in end["attempts"]} == {"worker_lost"}
        # There is no worker that could have told our row, and the author sees the end.
        assert (await _row(shared_conn, job))["ended"] is False
    for one in finders:
        one.terminate()


async def test_a_lease_that_ends_while_the_work_goes_on(
    scanner: Scanner, shared_conn: asyncpg.Connection
) -> None:
    """S1, S12: one is stopped, overtaken, and then brings its own result; one is killed."""
    for name in ("one", "two"):
        scanner.start_worker(name, SCANNER_TIER_SECONDS="1.5")
    async with author(scanner) as ana:
        await _both_there(ana)
        job = await ana.submit("slow_tier1")
        await ana.sees(job, "it is being scanned", state="TIER1_SCANNING")
        name = await scanner.worker_of(shared_conn)
        first = scanner.workers[name].popen
        first.send_signal(signal.SIGSTOP)
        try:
            # Its scan goes on, and nobody hears of it.
            await ana.sees(job, "it is started again", count=1, state="TIER1_SCANNING")
            assert await scanner.worker_of(shared_conn) != name
        finally:
            first.send_signal(signal.SIGCONT)
        end = await ana.sees_end(job)
        assert (end["state"], end["recovery"]["count"]) == ("PUBLISHED", 1)
        assert [one["outcome"] for one in end["attempts"]] == ["stuck", "succeeded"]
        assert (await _row(shared_conn, job))["scanned_in_start"] == 2

        # One that stays where it is until its worker is killed.
        other = await ana.submit("hang_tier1_once")
        await ana.sees(other, "it is being scanned", state="TIER1_SCANNING")
        scanner.workers[await scanner.worker_of(shared_conn)].kill()
        ended = await ana.sees_end(other)
        assert (ended["message"], ended["recovery"]["count"]) == (PUBLISHED, 1)
        assert [one["outcome"] for one in ended["attempts"]] == ["lost", "succeeded"]

        # Both workers have said all they had to say: the end of the second start stands.
        for worker in scanner.workers.values():
            worker.end()
        assert (await _row(shared_conn, job))["scanned_in_start"] == 2
        assert (await ana.look(job))["attempts"] == end["attempts"]


async def _both_there(ana: Author) -> None:
    async def both() -> bool:
        return len((await ana.operator_sees("status"))["workers"]) == 2

    await eventually(both, "two workers are there", seconds=PATIENCE_SECONDS)


async def test_one_command_starts_everything_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    """As a newcomer runs it, in an empty folder: no server, no settings, no set-up.

    S12: a scan takes one of the two workers along, which is started again.
    """
    site = Scanner("", tmp_path)
    everything = Program(
        [str(FOLDER), "--port", str(site.web_port)],
        {
            **dict.fromkeys(site.env, ""),
            "SCANNER_TIER_SECONDS": "0.2",
            "SCANNER_ADMIN_SECRET": CODE,
        },
        tmp_path / "everything.log",
        port=site.web_port,
        cwd=tmp_path,
    )
    site.programs.append(everything)

    async def announced() -> bool:
        return f"{site.address}/api/v1/admin/queue/status" in everything.printed

    try:
        everything.wait_ready()
        await eventually(announced, "the addresses are printed", seconds=PATIENCE_SECONDS)
        async with author(site) as ana:
            await _both_there(ana)
            done = await ana.sees_end(await ana.submit("crash_tier1_once"))
            assert (done["message"], done["recovery"]["count"]) == (PUBLISHED, 1)
            await _both_there(ana)
    finally:
        code = everything.end(signal.SIGINT)
        site.end()
    assert code == 0, everything.printed
    assert everything.printed.endswith("All parts have stopped.\n")
    assert "died (exit code -9) and is restarted." in everything.printed
    assert "Traceback" not in everything.printed
    for number in re.findall(r"is process (\d+)", everything.printed):
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)
