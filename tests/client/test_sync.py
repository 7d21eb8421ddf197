"""`app.sync`: the same answers from any thread, and nothing left behind."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import psycopg
import pytest

from penstock import Invalid, JobCancelled, Kind, NotFound, Penstock
from penstock.engine.jobs.attempts import Succeeded
from penstock.errors import Misconfigured
from support.caller_connections import BORROWERS


@pytest.fixture
def app(database: str) -> Iterator[Penstock]:
    app = Penstock(database, name="tests")
    app.queue("q")
    yield app
    app.sync.close()
    assert threads() == []


@pytest.fixture
def task(app: Penstock) -> Kind[..., Any]:
    @app.job(queue="q", dedupe="n")
    def task(n: int) -> None: ...

    return task


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "penstock-sync"]


def test_a_job_goes_from_submit_to_its_result(app: Penstock, task: Kind[..., Any]) -> None:
    ticket = app.sync.submit(task, n=1)
    assert (ticket.kind, ticket.deduplicated) == ("task", False)
    assert app.sync.status(ticket)["status"] == "queued"

    async def work() -> None:
        engine = await app.engine()
        worker = await engine.workers.register("w")
        started = await engine.jobs.claim(worker, "q", 5)
        await engine.jobs.finish(worker, [(job, Succeeded(7)) for job in started])

    asyncio.run(work())
    assert app.sync.result(ticket, timeout=5) == 7
    assert app.sync.result(str(ticket.id)) == 7


def test_kinds_may_be_given_by_name(app: Penstock, task: Kind[..., Any]) -> None:
    assert app.sync.submit("task", n=1).id == app.sync.submit(task, n=1).id
    with pytest.raises(NotFound, match="no job kind tusk in this app; known are task"):
        app.sync.submit("tusk", n=1)


def test_many_and_options(app: Penstock, task: Kind[..., Any]) -> None:
    tickets = app.sync.submit_many(task, [{"n": 1}, {"n": 1}, {"n": 2}])
    assert [ticket.deduplicated for ticket in tickets] == [False, True, False]
    assert app.sync.submit_many(task, []) == []
    later = app.sync.using(task, delay="5m", account="u1").submit(n=3)
    assert app.sync.status(later.id)["account"] == "u1"
    assert app.sync.cancel(later)["status"] == "cancelled"
    with pytest.raises(JobCancelled):
        app.sync.result(later)


def test_errors_are_the_same(app: Penstock, task: Kind[..., Any]) -> None:
    with pytest.raises(Invalid, match="n of job kind task is required"):
        app.sync.submit(task)
    assert threads() == []  # not even a loop was needed
    with pytest.raises(Invalid, match="conn must be a connection"):
        app.sync.using(task, conn=5).submit(n=1)
    with pytest.raises(TypeError, match="prority"):
        app.sync.using(task, prority=1)
    with pytest.raises(TimeoutError, match="has not finished within"):
        app.sync.result(app.sync.submit(task, n=1), timeout=0.01)


def test_several_threads_share_one_loop(app: Penstock, task: Kind[..., Any]) -> None:
    """Like a web server's threads; each gets its own answer."""
    with ThreadPoolExecutor(8) as pool:
        tickets = list(pool.map(lambda n: app.sync.submit(task, n=n), range(40)))
    assert len({ticket.id for ticket in tickets}) == 40
    assert len(threads()) == 1


@pytest.mark.parametrize("driver", ["psycopg", "DB-API", "SQLAlchemy Session"])
@pytest.mark.parametrize("commits", [True, False])
async def test_the_callers_connection_is_used_in_the_callers_thread(
    app: Penstock, task: Kind[..., Any], database: str, driver: str, commits: bool
) -> None:
    """E3: in Django, Flask or a script, a connection belongs to its thread."""
    async with BORROWERS[driver](database) as caller:
        using = app.sync.using(task, conn=caller.conn)
        await asyncio.to_thread(using.submit, n=1)
        await asyncio.to_thread(using.submit_many, [{"n": 1}, {"n": 2}])
        with psycopg.connect(database) as other:
            assert other.execute("select count(*) from penstock.job").fetchall() == [(0,)]
        await caller.end(commits=commits)
    with psycopg.connect(database) as other:
        expected = 2 if commits else 0
        assert other.execute("select count(*) from penstock.job").fetchall() == [(expected,)]


async def test_an_async_connection_is_refused_with_what_to_do(
    app: Penstock, task: Kind[..., Any], conn: asyncpg.Connection
) -> None:
    with pytest.raises(Invalid, match="conn is a connection for an event loop"):
        app.sync.using(task, conn=conn)


def test_calls_on_the_callers_connection_do_not_use_the_loop(
    app: Penstock, task: Kind[..., Any], database: str
) -> None:
    """A loop with a long task does not keep the caller's transaction open."""
    app.sync.submit(task, n=0)
    release = threading.Event()
    opened = app.sync._thread.run(app.engine())
    app.sync._thread._started().call_soon_threadsafe(release.wait)
    with psycopg.connect(database) as conn:
        submission = app.sync.using(task, conn=conn)
        job = submission._submission.new_job({"n": 1})
        assert submission._run(submission._submission.send(opened, job)).kind == "task"
    release.set()


def test_a_function_of_the_payload_may_use_sync_itself(app: Penstock, task: Kind[..., Any]) -> None:
    """It runs in the caller's thread, not in the loop, which would wait for itself."""

    @app.job(queue="q", topic=lambda p: str(app.sync.submit(task, n=p["n"]).id))
    def second(n: int) -> None: ...

    ticket = app.sync.submit(second, n=1)
    assert app.sync.status(ticket)["topic"] == str(app.sync.submit(task, n=1).id)


def test_after_close_the_next_call_opens_again(app: Penstock, task: Kind[..., Any]) -> None:
    app.sync.close()
    app.sync.submit(task, n=1)
    app.sync.close()
    app.sync.close()
    assert threads() == []
    assert app.sync.submit(task, n=1).deduplicated


def test_an_app_that_is_dropped_leaves_no_thread_and_no_connection(database: str) -> None:
    """Streamlit runs its script again at each click, and creates another app each time."""

    def script() -> None:
        app = Penstock(database)
        app.queue("q")

        @app.job(queue="q")
        def task(n: int) -> None: ...

        app.sync.submit(task, n=1)

    for _ in range(3):
        script()
    gc.collect()
    with psycopg.connect(database, autocommit=True) as conn:
        asked = "select count(*) from pg_stat_activity where datname = current_database()"
        deadline = time.monotonic() + 10
        while threads() or conn.execute(asked).fetchall() != [(1,)]:
            assert time.monotonic() < deadline, "a thread or a connection is left"


SCRIPT = """
import sys
from penstock import Penstock
app = Penstock(sys.argv[1])
app.queue("q")
@app.job(queue="q")
def task(n: int) -> None: ...
app.sync.submit(task, n=1)
"""


def test_a_script_needs_no_close(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("listen penstock_job")
        done = subprocess.run(
            [sys.executable, "-W", "error", "-X", "dev", "-c", SCRIPT, database],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert [
            notification.payload for notification in conn.notifies(timeout=5, stop_after=1)
        ] == ["q"]


async def test_inside_a_running_loop_it_says_what_to_use(database: str) -> None:
    """D2: it would block the loop and everything that runs in it."""
    app = Penstock(database, name="tests")
    app.queue("q")

    @app.job(queue="q")
    def task(n: int) -> None: ...

    ticket = await task.submit(n=1)
    calls: list[Callable[[], Any]] = [
        lambda: app.sync.submit(task, n=1),
        lambda: app.sync.submit_many(task, [{"n": 1}]),
        lambda: app.sync.result(ticket, timeout=5),
        lambda: app.sync.accounts.show("u1"),
    ]
    for call in calls:
        with pytest.raises(Misconfigured, match=r"asyncio.to_thread\(app.sync.submit"):
            call()
    assert (await asyncio.to_thread(app.sync.status, ticket))["status"] == "queued"
    await app.close()
