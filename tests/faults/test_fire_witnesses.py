"""The witnesses of the campaign: logs that survive kills, the sampler, and the receiver."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import httpx
import pytest
from standardwebhooks import Webhook

from fire.logs import Log, Message, Sample
from fire.sampler import Sampler
from penstock.security.signature import written
from support import factory
from support.clock import Clock
from support.http.serving import free_port
from support.liveness import accept, standing
from support.waiting import eventually

TESTS = Path(__file__).resolve().parents[1]
SECRET = written(b"a key that only these tests know")


async def test_the_sampler_logs_stuck_work_once(
    database: str,
    conn: asyncpg.Connection,
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not at the first check: the work may be about to move."""
    monkeypatch.setattr("fire.sampler.POLL_SECONDS", 0.0)
    monkeypatch.setattr("fire.sampler.STUCK_SECONDS", 0.2)
    log = Log(tmp_path)
    sampler = Sampler(database, log)
    await factory.queue(conn)
    worker = await standing(conn)
    job = await factory.submit(conn)
    await accept(conn, clock, worker, 30)
    await sampler.sample()
    assert sampler.seen["stuck"] == 0

    async def noted() -> bool:
        await sampler.sample()
        return sampler.seen["stuck"] == 1

    await eventually(noted, "it is noted")
    await sampler.sample()
    sampler.close()
    log.close()
    [sample] = [one for one in Sample.read(tmp_path) if one.word == "stuck"]
    assert str(job) in sample.what


async def test_a_line_cut_by_a_kill_is_skipped(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write(Sample(word="sound"))
    path = tmp_path / Sample.file
    path.write_text(path.read_text()[:-20])
    log.write(Sample(word="away"))
    log.close()
    assert [sample.word for sample in Sample.read(tmp_path)] == ["away"]


@pytest.mark.unsound
async def test_the_sampler_logs_an_exceeded_limit(
    database: str, conn: asyncpg.Connection, tmp_path: Path
) -> None:
    """Jobs that run when a limit is lowered may go on; starting one above it is a breach."""
    log = Log(tmp_path)
    sampler = Sampler(database, log)
    await factory.queue(conn, "q", concurrency=2)
    worker = await factory.worker(conn)
    for _ in range(2):
        await factory.submit(conn)
    await factory.claim(conn, worker, limit=2)
    await sampler.sample()
    await conn.execute("select penstock.declare_queue('q', '{\"concurrency\": 1}')")
    await sampler.sample()
    await conn.execute("update penstock.job set started_at = penstock.clock()")
    await sampler.sample()
    sampler.close()
    log.close()
    samples = Sample.read(tmp_path)
    assert [sample.word for sample in samples] == ["sound", "sound", "breach"]
    assert "queue q" in samples[-1].what


async def test_the_sampler_waits_for_an_unavailable_server(tmp_path: Path) -> None:
    """R-F5"""
    log = Log(tmp_path)
    sampler = Sampler(f"postgresql://nobody@127.0.0.1:{free_port()}/none", log)
    await sampler.sample()
    log.close()
    assert [sample.word for sample in Sample.read(tmp_path)] == ["away"]


@contextmanager
def receiving(folder: Path) -> Iterator[str]:
    port = free_port()
    words = ["-m", "fire.receiver", "--port", str(port), "--log", str(folder), "--secret", SECRET]
    path = os.pathsep.join([str(TESTS), *sys.path])
    process = subprocess.Popen([sys.executable, *words], env=os.environ | {"PYTHONPATH": path})
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(10) == 0


async def test_the_receiver_answers_by_its_mode_and_checks_signatures(tmp_path: Path) -> None:
    """E15"""
    now = datetime.now(UTC)
    body = json.dumps({"type": "job.failed", "data": {"id": "j1", "status": "failed"}})
    headers = {
        "webhook-id": "m1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(SECRET).sign("m1", now, body),
    }
    seen: dict[str, object] = {}
    with receiving(tmp_path) as url:
        async with httpx.AsyncClient(base_url=url, timeout=10) as client:

            async def is_there() -> bool:
                try:
                    return (await client.get("/control")).is_success
                except httpx.HTTPError:
                    return False

            async def post(mode: str, body: str = body) -> object:
                assert (await client.post("/control", json={"mode": mode})).is_success
                try:
                    answer = await client.post("/hook", content=body, headers=headers, timeout=1)
                except httpx.TimeoutException:
                    return "late"
                except httpx.HTTPError:
                    return "broken"
                return answer.status_code

            await eventually(is_there, "the receiver is there", seconds=20)
            for mode in ("ok", "fail", "reset", "hang"):
                seen[mode] = await post(mode)
            assert await post("ok", body + " ") == 200
            assert (await client.post("/control", json={"mode": "odd"})).status_code == 422
            answers = (await client.get("/control")).json()
    assert seen.pop("fail") in {500, 503}
    assert seen == {"ok": 200, "reset": "broken", "hang": "late"}
    assert answers["mode"] == "ok"
    messages = Message.read(tmp_path)
    assert {(one.id, one.job, one.event, one.status) for one in messages} == {
        ("m1", "j1", "job.failed", "failed")
    }
    assert [one.signature for one in messages] == [True, True, True, True, False]
    assert [one.answered for one in messages if isinstance(one.answered, str)] == ["reset", "hang"]
