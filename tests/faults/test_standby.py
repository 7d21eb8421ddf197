"""A standby that hangs, is behind, or is used instead of the primary.

A commit that waits for its synchronous standby can be cancelled: then it is committed on the
primary, and only a warning says that a failover would lose it. No client may get "accepted".
"""

import asyncio
import time
from collections import Counter
from pathlib import Path

import asyncpg
import httpx
import pytest

from penstock.base.settings import Settings
from penstock.engine.doctor.doctor import examine
from penstock.engine.doctor.finding import Finding
from penstock.engine.engine import Engine
from penstock.engine.jobs.jobs import NewJob
from penstock.errors import Unavailable
from support.cluster import assert_sound
from support.servers.failover import (
    Client,
    Pair,
    Programs,
    ask,
    clients,
    configure,
    pair,
    programs,
    run,
    until,
)
from support.shapes import Scale
from support.waiting import eventually
from support.worker.crew import Process, noted_in

NAP = {"seconds": 0.01}
HELD = 4


@pytest.mark.timeout(300)
async def test_while_the_standby_hangs_no_client_gets_an_accepted_job(
    tmp_path: Path, scale: Scale
) -> None:
    """M2, R-F11b: not by a first call, a repeated one or a twin; and then the primary dies."""
    limit_seconds = scale(2.0, 10.0)
    async with (
        pair() as servers,
        programs(servers.dsn, tmp_path, servers=1, workers=0, answer_seconds=limit_seconds) as site,
        clients(site.urls, 3) as callers,
    ):
        client = callers[0]
        await client.submit("before", NAP)
        sessions = _sessions(servers)
        servers.standby.pause()

        async def trapped() -> bool:
            await _refused_all(client, limit_seconds)
            return bool(ask(servers.primary, "select count(*) = 2 from penstock.idempotency"))

        # They were cancelled, and exist: a repetition that only reads would report an accepted job.
        await eventually(trapped, "a cancelled commit is there", seconds=60)
        await _refused_all(client, limit_seconds)
        await _cancelled_by_hand(servers)
        assert _sessions(servers) <= sessions + 3, "sessions pile up"
        report = await _read(site, "before", client)
        assert report.status_code == 200, "a read does not wait"

        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for one in callers:
                group.create_task(one.run(over, NAP))
            await asyncio.to_thread(servers.primary.kill)
            servers.standby.resume()
            await asyncio.to_thread(servers.promote)
            await client.submit("k", NAP)
            over.set()
        answers = {key: job for one in callers for key, job in one.jobs.items()}
        conn = await asyncpg.connect(servers.primary.dsn)
        rows = await conn.fetch("select key, job_id::text from penstock.idempotency")
        await conn.close()
        found = {row["key"]: row["job_id"] for row in rows}
        assert answers.items() <= found.items()
        assert Counter(found.values()).most_common(1)[0][1] == 1
        await asyncio.to_thread(assert_sound, servers.primary.dsn)


async def _refused_all(client: Client, limit_seconds: float) -> None:
    """With a key, without one (in a shared statement), with a twin: none gets a job."""
    begun = time.monotonic()
    answers = await asyncio.gather(
        client.ask("k", NAP),
        client.ask(None, NAP),
        client.ask(None, NAP, dedupe_key="twin", account="u"),
    )
    for answer in answers:
        assert answer is not None
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json()["code"] == "unavailable"
    assert time.monotonic() - begun < limit_seconds + 5


async def _cancelled_by_hand(servers: Pair) -> None:
    """An operator cancels the wait of an app without a deadline: it gets an unknown outcome.

    Also if workers were notified before.
    """
    for wake in (None, "q"):
        await _one_cancelled_by_hand(servers, wake)


async def _one_cancelled_by_hand(servers: Pair, wake: str | None) -> None:
    async with await Engine.open(servers.dsn) as engine:
        job = NewJob(kind="nap", payload=NAP)
        asked = asyncio.create_task(engine.jobs.submit(job, wake=wake))
        cancel = (
            "select count(pg_cancel_backend(pid)) > 0 from pg_stat_activity"
            " where wait_event = 'SyncRep' and query like '%submit%'"
        )

        async def cancelled() -> bool:
            return bool(ask(servers.primary, cancel))

        await eventually(cancelled, "a commit waits and is cancelled", poll=0.05)
        with pytest.raises(Unavailable, match="gave up waiting for its standby"):
            await asked


async def _read(site: Programs, key: str, client: Client) -> httpx.Response:
    return await client.get(f"{site.urls[0]}/v1/jobs/{client.jobs[key]}")


def _sessions(servers: Pair) -> int:
    found: int = ask(
        servers.primary,
        "select count(*) from pg_stat_activity where backend_type = 'client backend'",
    )
    return found


@pytest.mark.timeout(300)
async def test_workers_survive_a_standby_that_hangs_longer_than_their_lease(
    tmp_path: Path, scale: Scale
) -> None:
    """E9, R-F11b: they lose no jobs, nothing runs twice, and sessions do not accumulate."""
    lease_seconds, hang_seconds = scale((5, 9.0), (15, 40.0))
    async with (
        pair() as servers,
        programs(servers.dsn, tmp_path, servers=1, workers=0) as site,
        clients(site.urls, 1) as [client],
    ):
        crew = [
            Process(servers.dsn, tmp_path, name, lease=lease_seconds, beat=lease_seconds / 5)
            for name in ("w1", "w2")
        ]
        try:
            gate = tmp_path / "gate"
            for number in range(HELD):
                await client.submit(f"held-{number}", {"gate": str(gate)}, "hold")
            await eventually(lambda: _noted(tmp_path, "start", HELD), "they run", seconds=20)
            for number in range(HELD):
                await client.submit(f"later-{number}", {"gate": str(gate)}, "hold")
            servers.standby.pause()
            begun = time.monotonic()
            gate.touch()  # their outcomes wait, and the statements after them

            most = 0
            while time.monotonic() < begun + hang_seconds:
                most = max(most, _sessions(servers))
                await asyncio.sleep(0.25)
            servers.standby.resume()
            await eventually(
                lambda: _finished(servers, 2 * HELD),
                "all end when it is back",
                seconds=20,
                poll=0.1,
            )
            starts = Counter(line.job for line in noted_in(tmp_path, "start"))
            assert set(starts.values()) == {1}, starts
            assert len(starts) == 2 * HELD
            lost = "select count(*) from penstock.worker where lost_at is not null"
            assert ask(servers.primary, lost) == 0
            print(f"\nsessions while the standby hung: {most} at most")
            assert most <= _sessions(servers) + 12
            await asyncio.to_thread(assert_sound, servers.primary.dsn)
        finally:
            for process in crew:
                process.kill()


async def _noted(folder: Path, word: str, many: int) -> bool:
    return len(noted_in(folder, word)) >= many


async def _finished(servers: Pair, many: int) -> bool:
    return bool(ask(servers.primary, "select count(*) from penstock.finished") == many)


@pytest.mark.timeout(300)
async def test_a_standby_that_was_behind_takes_over_with_a_sound_database(
    tmp_path: Path,
) -> None:
    """G3, R-F11c: acknowledged jobs are lost, as the how-to says; credits and jobs agree.

    The worker runs an attempt that the new primary does not know. Its result does not count,
    although the new primary gives the same attempt of the same job to the same worker.
    """
    async with (
        pair(sync=False) as servers,
        programs(servers.dsn, tmp_path, servers=1, workers=0) as site,
        clients(site.urls, 1) as [client],
    ):
        gate = tmp_path / "gate"
        for sql in (
            "select penstock.declare_kind('bought', 'idle', '{\"price\": 3}')",
            "select penstock.grant_credits('u', 100, 'test')",
            "select penstock.pause_queue('q')",
        ):
            ask(servers.primary, sql)
        await client.submit("kept", {"gate": str(gate)}, "hold")
        worker = Process(servers.dsn, tmp_path, "w", queues=["q"])
        try:
            await eventually(lambda: _is(servers, _WORKER), "the worker is there", seconds=20)
            await asyncio.to_thread(_fall_behind, servers)
            ask(servers.primary, "select penstock.resume_queue('q')")
            await eventually(lambda: _noted(tmp_path, "start", 1), "it runs", seconds=20)
            lost = await client.ask("lost", {}, "bought", account="u")
            assert lost is not None
            assert lost.status_code == 201

            await asyncio.to_thread(servers.primary.kill)
            await asyncio.to_thread(servers.promote)
            ask(servers.primary, "select penstock.resume_queue('q')")
            await eventually(lambda: _noted(tmp_path, "start", 2), "it runs again", seconds=30)
            gate.touch()
            await eventually(lambda: _finished(servers, 1), "it ends", seconds=30)
            await eventually(lambda: _noted(tmp_path, "end", 2), "both handlers end", seconds=30)
            assert "the database is on timeline 2, it was on 1" in worker.log_text
        finally:
            worker.kill()
        [first, second] = noted_in(tmp_path, "start")
        assert (first.job, first.pid) == (second.job, second.pid)
        assert (first.attempt, second.attempt) == (1, 2)
        assert ask(servers.primary, "select attempt from penstock.finished") == 2
        assert ask(servers.primary, "select balance from penstock.account where name = 'u'") == 100
        gone = await client.get(f"{site.urls[0]}/v1/jobs/{lost.json()['id']}")
        assert gone.status_code == 404
        await asyncio.to_thread(assert_sound, servers.primary.dsn)


_WORKER = "select exists (select from penstock.worker where locks)"


async def _is(servers: Pair, sql: str) -> bool:
    return bool(ask(servers.primary, sql))


def _fall_behind(servers: Pair) -> None:
    """The standby has replayed everything, and from now on gets nothing."""
    here = ask(servers.primary, "select pg_current_wal_insert_lsn()")
    caught_up = f"select pg_last_wal_replay_lsn() >= '{here}'"
    until(lambda: ask(servers.standby, caught_up), "the standby has caught up")
    configure(servers.standby, "primary_conninfo", "")
    followed = "select exists (select from pg_stat_replication)"
    until(lambda: not ask(servers.primary, followed), "no standby follows")


async def test_the_doctor_checks_standbys(tmp_path: Path) -> None:
    """R-F11b: the doctor reports commits that wait for no standby, or for too little."""
    async with pair() as servers:
        dsn = servers.dsn
        well = await _replication(dsn)
        assert (well.level, well.message) == ("ok", "timeline 1, followed by two (sync)")

        ask(servers.primary, "alter database postgres set synchronous_commit = remote_write")
        weak = await _replication(dsn)
        assert weak.level == "warning"
        assert "synchronous_commit is remote_write" in weak.message
        ask(servers.primary, "alter database postgres reset synchronous_commit")
        ask(servers.primary, "alter database postgres set client_min_messages = error")
        deaf = await _replication(dsn)
        assert deaf.level == "warning"
        assert "client_min_messages is error" in deaf.message
        ask(servers.primary, "alter database postgres reset client_min_messages")

        ask(servers.primary, "create role plain login")
        plain = await _replication(dsn.replace("owner@", "plain@"))
        assert plain.level == "ok"
        assert plain.message == "timeline 1, 1 standby connected; pg_monitor could see more"

        refused = await asyncio.to_thread(run, servers.standby.dsn, tmp_path, "doctor")
        assert refused.returncode == 1
        assert "is a standby, which accepts no writes. Use the address of the" in refused.stdout
        with pytest.raises(Unavailable, match="is a standby, which accepts no writes"):
            await Engine.open(servers.standby.dsn)

        await asyncio.to_thread(servers.standby.kill)
        followed = "select exists (select from pg_stat_replication)"
        until(lambda: not ask(servers.primary, followed), "no standby follows")
        alone = await _replication(dsn)
        assert alone.level == "bad"
        assert "commits wait until one is" in alone.message


async def _replication(dsn: str) -> Finding:
    [found] = [one async for one in examine(Settings(dsn=dsn)) if one.name == "replication"]
    return found
