"""What a handler reports and keeps while it runs: stages, progress, steps, the live stream."""

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock import Job, Penstock, Retries
from penstock.engine.jobs.attempts import Progress
from penstock.errors import Invalid
from penstock.worker.attempts import attempt
from penstock.worker.reporting import progress
from support.factory import submit
from support.waiting import eventually
from support.worker.crew import until_finished, working

AT_ONCE = Retries(attempts=3, backoff="constant", delay="0s")


def new_app() -> Penstock:
    app = Penstock(name="telling")
    app.queue("q", retry=AT_ONCE)
    return app


async def run_one(dsn: str, conn: asyncpg.Connection, app: Penstock, **payload: Any) -> Any:
    """One job of the app's only kind; its row of history."""
    async with working(dsn, app):
        job = await submit(conn, next(iter(app.kinds)), payload=payload)
        [row] = await until_finished(conn, [job])
    return row


async def chunks(conn: asyncpg.Connection, job: UUID) -> list[tuple[int, int, Any]]:
    rows = await conn.fetch("select attempt, seq, data from penstock.read_chunks($1)", job)
    return [(row["attempt"], row["seq"], row["data"]) for row in rows]


@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_a_thousand_reports_are_few_writes_and_the_last_one_is_kept(
    database: str, conn: asyncpg.Connection, mode: str
) -> None:
    """S4, G12: the latest report of each, at a pace; the last one is in history."""
    app = new_app()
    if mode == "async":

        @app.job(queue="q")
        async def count(job: Job) -> None:
            for n in range(1_001):
                await job.progress(n, 1_000, partial=[n])
                await job.stage(f"part {n // 100}", "a part")
            await asyncio.sleep(0)

    else:

        @app.job(queue="q", name="count")
        def count_in_thread(job: Job) -> None:
            for n in range(1_001):
                job.progress(n, 1_000, partial=[n])
                job.stage(f"part {n // 100}", "a part")

    row = await run_one(database, conn, app)
    assert row["progress"] == {"done": 1_000, "total": 1_000, "partial": [1_000]}
    assert row["stage"] == "part 10"
    assert row["version"] < 20


async def test_a_report_under_way_is_not_overtaken_by_the_outcome(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4: the outcome waits for the report that is just being written."""
    writing = asyncio.Event()
    report = Progress.report

    async def slow_report(self: Progress, *args: Any) -> Any:
        writing.set()
        await asyncio.sleep(0.2)
        return await report(self, *args)

    monkeypatch.setattr(Progress, "report", slow_report)
    app = new_app()

    @app.job(queue="q")
    async def say(job: Job) -> None:
        await job.progress(1, 2)
        await writing.wait()

    row = await run_one(database, conn, app)
    assert (row["status"], row["progress"]["done"]) == ("succeeded", 1)


async def test_stages_are_known_while_it_runs_and_go_back(
    database: str, conn: asyncpg.Connection
) -> None:
    """S4: which one, and since when."""
    app = new_app()
    go_on: asyncio.Queue[None] = asyncio.Queue()

    @app.job(queue="q")
    async def scan(job: Job) -> None:
        async with job.stage("TIER1", label="Tier 1 scanning"):
            await go_on.get()
            async with job.stage("TIER2"):
                await go_on.get()
            await go_on.get()
        await go_on.get()

    async def stage_is(expected: str | None) -> None:
        async def is_so() -> bool:
            row = await conn.fetchrow("select stage, stage_at from penstock.job where id = $1", job)
            assert row
            return row["stage"] == expected and (row["stage_at"] is None) == (expected is None)

        await eventually(is_so, f"stage {expected}")
        go_on.put_nowait(None)

    async with working(database, app):
        job = await submit(conn, "scan")
        for stage in ("TIER1", "TIER2", "TIER1", None):
            await stage_is(stage)
        await until_finished(conn, [job])


async def test_pieces_of_the_stream_are_in_order_and_joined(
    database: str, conn: asyncpg.Connection
) -> None:
    """G12: texts that follow one another are one piece; a second attempt has its own numbers."""
    app = new_app()

    @app.job(queue="q")
    async def write(job: Job) -> None:
        for word in ("once ", "upon ", "a time"):
            await job.emit(word)
        await job.emit({"image": 1})
        await job.emit("the end")
        if job.attempt == 1:
            raise RuntimeError

    row = await run_one(database, conn, app)
    assert await chunks(conn, row["id"]) == [
        (attempt, *piece)
        for attempt in (1, 2)
        for piece in [(1, "once upon a time"), (2, {"image": 1}), (3, "the end")]
    ]


async def test_a_long_stream_is_cut_and_loses_nothing(
    database: str, conn: asyncpg.Connection
) -> None:
    """G12: also from a thread, to which the loop sends nothing in between."""
    app = new_app()
    words = [f"{n} " for n in range(20_000)]

    @app.job(queue="q")
    def write(job: Job) -> None:
        for word in words:
            job.emit(word)

    row = await run_one(database, conn, app)
    rows = await conn.fetch("select data from penstock.read_chunks($1, 0, 0, 100000)", row["id"])
    assert "".join(piece["data"] for piece in rows) == "".join(words)
    assert max(len(piece["data"]) for piece in rows) <= progress.CHUNK_CHARACTERS


@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_a_handler_that_emits_faster_than_can_be_written_has_to_wait(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """G12: while the database is unavailable, memory does not grow without limit."""
    unavailable = True
    append = Progress.append_chunks

    async def maybe(self: Progress, *args: Any) -> int:
        if unavailable:
            raise ConnectionRefusedError
        return await append(self, *args)

    monkeypatch.setattr(Progress, "append_chunks", maybe)
    monkeypatch.setattr(attempt, "UNAVAILABLE_SECONDS", (0.02, 0.02))
    app = new_app()
    emitted: list[int] = []
    piece = "x" * 4_000
    if mode == "async":

        @app.job(queue="q")
        async def write(job: Job) -> None:
            for n in range(500):
                await job.emit(piece)
                emitted.append(n)

    else:

        @app.job(queue="q", name="write")
        def write_in_thread(job: Job) -> None:
            for n in range(500):
                job.emit(piece)
                emitted.append(n)

    async with working(database, app):
        job = await submit(conn, "write")

        async def waits() -> bool:
            before = len(emitted)
            await asyncio.sleep(0.2)
            return 0 < before == len(emitted)

        await eventually(waits, "the handler waits")
        # A report whose writing failed may be added to those gathered since.
        assert len(emitted) * len(piece) < 4 * progress.BACKLOG_CHARACTERS
        unavailable = False
        await until_finished(conn, [job])
    rows = await conn.fetch("select data from penstock.read_chunks($1, 0, 0, 100000)", job)
    assert sum(len(piece["data"]) for piece in rows) == 500 * len(piece)


async def test_reports_that_cannot_be_written_do_not_affect_others(
    database: str, conn: asyncpg.Connection
) -> None:
    """S4: nor do they stop the worker, or the job itself."""
    app = new_app()
    both = asyncio.Barrier(2)

    @app.job(queue="q")
    async def say(job: Job, size: int) -> str:
        await both.wait()
        deep: Any = "x"
        for _ in range(size):
            deep = [deep]
        try:
            await job.progress(1, 1, partial=deep)
        except Invalid:
            return "refused"
        await both.wait()
        return "said"

    async with working(database, app):
        jobs = [await submit(conn, "say", payload={"size": size}) for size in (1, 900)]
        rows = await until_finished(conn, jobs)
    assert [row["status"] for row in rows] == ["succeeded"] * 2
    assert rows[0]["progress"]["done"] == 1


async def test_steps_run_once_for_all_attempts(database: str, conn: asyncpg.Connection) -> None:
    """F6: also steps that run in parallel; a kept result is returned as it was stored."""
    app = new_app()
    calls: list[str] = []

    @app.job(queue="q")
    async def pipeline(job: Job) -> list[Any]:
        def blocking(name: str) -> tuple[str, str]:
            calls.append(name)
            return name, job.key

        async def awaited(name: str) -> dict[str, Any]:
            calls.append(name)
            await asyncio.sleep(0)
            return {"name": name}

        kept = await asyncio.gather(
            *(job.step(name, blocking, name) for name in ("a", "b", "c")),
            *(job.step(name, awaited, name) for name in ("d", "e")),
        )
        if job.attempt < 3:
            raise RuntimeError
        return [*kept, await job.step("a", blocking, "again")]

    row = await run_one(database, conn, app)
    keys = [[name, f"{row['id']}:{name}"] for name in "abc"]
    assert row["result"] == [*keys, {"name": "d"}, {"name": "e"}, keys[0]]
    assert sorted(calls) == ["a", "b", "c", "d", "e"]
    assert row["attempt"] == 3


async def test_steps_of_a_plain_function_are_the_same(
    database: str, conn: asyncpg.Connection
) -> None:
    """F6: in a thread the call returns when the result is stored."""
    app = new_app()
    calls: list[int] = []

    @app.job(queue="q")
    def pipeline(job: Job) -> Any:
        def dear() -> tuple[int, int]:
            calls.append(job.attempt)
            return job.attempt, 7

        kept = job.step("dear", dear)
        if job.attempt == 1:
            raise RuntimeError
        return kept

    row = await run_one(database, conn, app)
    assert (row["result"], calls) == ([1, 7], [1])


async def test_invalid_arguments_of_a_stage_or_step_are_named(
    database: str, conn: asyncpg.Connection
) -> None:
    async def awaited() -> int:
        return 1

    def say(job: Any) -> list[str]:
        rows = []
        for call, args in (
            (job.stage, (5,)),
            (job.stage, ("READ", 5)),
            (job.step, (5, list)),
            (job.step, ("c", 5)),
        ):
            with pytest.raises(Invalid) as caught:
                call(*args)
            rows.append(caught.value.message)
        return rows

    expected = [
        "stage must have a name of 1 to 200 characters, not int",
        "label must be a text, not int",
        "step must have a name of 1 to 200 characters, not int",
        "step c needs a function to run, not int",
    ]
    app = new_app()

    @app.job(queue="q")
    async def in_the_loop(job: Job) -> list[str]:
        return say(job)

    assert (await run_one(database, conn, app))["result"] == expected
    app = new_app()

    @app.job(queue="q")
    def in_a_thread(job: Job) -> list[str]:
        rows = say(job)
        for function in (awaited, lambda: awaited()):  # noqa: PLW0108  # seen only when called
            with pytest.raises(Invalid, match="give a plain function here"):
                job.step("c", function)
        return [*rows, job.step("c", lambda: "once")]

    assert (await run_one(database, conn, app))["result"] == [*expected, "once"]


@pytest.mark.parametrize("value", [{1}, float("nan"), "half \ud800", "nul \0"])
async def test_a_step_whose_result_is_not_json_fails_with_its_name(
    database: str, conn: asyncpg.Connection, value: Any
) -> None:
    app = new_app()

    @app.job(queue="q", attempts=1)
    async def pipeline(job: Job) -> Any:
        return await job.step("odd", lambda: value)

    row = await run_one(database, conn, app)
    assert (row["status"], row["error"]["class"]) == ("failed", "bug")
    assert "step" in row["error"]["message"]


@pytest.mark.parametrize("value", [{1}, float("inf"), "half \ud800", "nul \0"])
async def test_a_result_that_is_not_json_fails_the_job_at_once(
    database: str, conn: asyncpg.Connection, value: Any
) -> None:
    """M10: another attempt would only cost the same again."""
    app = new_app()

    @app.job(queue="q")
    async def odd() -> Any:
        return value

    row = await run_one(database, conn, app)
    assert (row["status"], row["attempt"], row["error"]["class"]) == ("failed", 1, "bug")
    assert row["error"]["message"].startswith("result ")
