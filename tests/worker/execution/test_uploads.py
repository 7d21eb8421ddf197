"""Files of jobs: read and made by handlers of every sort, and removed when no job needs them."""

import asyncio
import io
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock.engine.engine import Engine
from penstock.engine.jobs.info import JobInfo
from penstock.engine.jobs.jobs import NewJob
from penstock.errors import Invalid, NotFound, TooLarge
from penstock.worker.worker import Options, Worker
from support.clock import Clock
from support.worker.crew import declare
from support.worker.file_handlers import app

CONTENT = bytes(range(256)) * 2_500  # more than two pieces


@pytest.fixture
async def engine(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Engine]:
    monkeypatch.chdir(tmp_path)
    await declare(database, app)
    async with await Engine.open(database, max_connections=4) as engine:
        yield engine


async def upload(engine: Engine, content: bytes, account: str | None = None) -> UUID:
    kept = await engine.uploads.create(io.BytesIO(content), "image/png", account=account)
    return kept.id


async def run(
    engine: Engine, database: str, kind: str, account: str | None = None, **payload: Any
) -> JobInfo:
    job = await engine.jobs.submit(
        NewJob(kind=kind, payload=payload, account=account, max_attempts=1)
    )
    await Worker(database, app.handlers(), Options(name="files", until_idle=True)).run()
    return await engine.jobs.read(job.id)


@pytest.mark.parametrize("kind", ["copy", "copy_in_thread", "copy_in_process"])
async def test_every_sort_of_handler_reads_and_makes_files(
    engine: Engine, database: str, kind: str
) -> None:
    """E2"""
    given = await upload(engine, CONTENT, "u1")
    job = await run(engine, database, kind, "u1", file={"upload": str(given)})
    assert job["error"] is None, job["error"]
    made = await engine.uploads.find(UUID(job["result"]["made"]["upload"]), account="u1")
    assert (made.size, made.content_type, job["result"]["size"]) == (
        len(CONTENT),
        "image/png",
        len(CONTENT),
    )
    assert b"".join([piece async for piece in engine.uploads.pieces(made)]) == CONTENT


async def test_a_job_opens_only_files_of_its_account(engine: Engine, database: str) -> None:
    """E2, C1: also a reference in the payload, which a submit by plain SQL does not check."""
    own, other = await upload(engine, b"own", "u1"), await upload(engine, b"other", "u2")
    nobodys = await upload(engine, b"nobody's")
    assert (await run(engine, database, "peek", "u1", wanted=str(own)))["result"] == 3
    assert (await run(engine, database, "peek", wanted=str(nobodys)))["result"] == 8
    for account, foreign in (("u1", other), ("u1", nobodys), (None, own)):
        job = await run(engine, database, "peek", account, wanted=str(foreign))
        assert (job["status"], job["error"]["class"]) == ("failed", "bug")
        assert "there is no upload" in job["error"]["message"]
        job = await run(engine, database, "copy", account, file={"upload": str(foreign)})
        assert job["status"] == "failed"
        assert "there is no upload" in job["error"]["message"]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("text", "takes bytes, a Path, a file, or an iterator of bytes, not str"),
        ("texts", "encode texts first"),
        ("type", "content_type must be a media type"),
        ("endless", "at most 26214400 bytes"),
        ("nonsense", 'open() takes {"upload": id}'),
    ],
)
async def test_a_file_that_cannot_be_kept_is_refused_with_a_reason(
    engine: Engine, database: str, conn: asyncpg.Connection, what: str, says: str
) -> None:
    job = await run(engine, database, "make", what=what)
    assert job["status"] == "failed"
    assert says in job["error"]["message"]
    assert await conn.fetchval("select count(*) from penstock.upload_part") == 0


async def test_an_empty_file_may_be_made(engine: Engine, database: str) -> None:
    job = await run(engine, database, "make", what="nothing")
    made = await engine.uploads.find(UUID(job["result"]["upload"]))
    assert made.size == 0
    assert [piece async for piece in engine.uploads.pieces(made)] == []


async def test_unused_files_are_removed(
    engine: Engine, clock: Clock, conn: asyncpg.Connection
) -> None:
    """Files that no job used within a day, and files last used longer ago than is kept."""
    unused, used = await upload(engine, CONTENT), await upload(engine, CONTENT)
    made = await engine.uploads.create(io.BytesIO(CONTENT), "image/png", account=None, quota=False)
    await engine.uploads.refuse_foreign("copy", {"file": {"upload": str(used)}}, None)
    assert await engine.upkeep.sweep_uploads() == 0
    await clock.advance("25h")
    assert await engine.upkeep.sweep_uploads() == 1
    with pytest.raises(NotFound):
        await engine.uploads.find(unused)
    await engine.uploads.refuse_foreign("copy", {"file": {"upload": str(used)}}, None)
    await clock.advance(timedelta(days=90, hours=-12))
    assert await engine.upkeep.sweep_uploads() == 1
    with pytest.raises(NotFound):
        await engine.uploads.find(made.id)
    assert (await engine.uploads.find(used)).size == len(CONTENT)
    await clock.advance("1d")
    assert await engine.upkeep.sweep_uploads() == 1
    assert await conn.fetchval("select count(*) from penstock.upload_part") == 0


async def test_of_two_files_that_exceed_the_quota_one_is_refused(
    engine: Engine, conn: asyncpg.Connection
) -> None:
    """E2: the quota holds when many are uploaded at once."""
    await engine.accounts.create("u1")
    await conn.execute("update penstock.setting set upload_quota_bytes = 2500")
    sent = await asyncio.gather(
        *(upload(engine, bytes(1_000), "u1") for _ in range(6)), return_exceptions=True
    )
    refused = [one for one in sent if isinstance(one, TooLarge)]
    assert (len(refused), refused[0].code) == (4, "upload_quota_exceeded")
    assert await conn.fetchval("select sum(size) from penstock.upload") == 2000


async def test_a_submit_in_python_refuses_a_foreign_file(engine: Engine, database: str) -> None:
    """E2: also in the caller's own transaction, which stays usable."""
    other = await upload(engine, b"x", "u2")
    mine = app
    await mine.move(database)
    try:
        kind = mine.kinds["copy"].using(account="u1")
        with pytest.raises(Invalid, match="not of the same account") as refused:
            await kind.submit(file={"upload": str(other)})
        assert (refused.value.code, refused.value.field) == ("unknown_upload", "payload.file")
        with pytest.raises(Invalid, match=r"row 2: payload\.file refers"):
            await kind.submit_many([{"file": {}}, {"file": {"upload": str(other)}}])
        async with engine.transaction() as conn:
            with pytest.raises(Invalid):
                await kind.using(conn=conn).submit(file={"upload": str(other)})
            await kind.using(conn=conn, account="u2").submit(file={"upload": str(other)})
    finally:
        await mine.move(None)
