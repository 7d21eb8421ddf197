"""The first use opens an engine; each loop, thread and forked child has its own."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import asyncpg
import psycopg
import pytest
import uvloop

from penstock import Invalid, Kind, Misconfigured, Penstock, Unavailable
from penstock.client import engines
from penstock.engine.engine import Engine
from penstock.errors import SchemaMismatch
from support.db.embedded_uses import end_servers, quiet_forks, runs, starts
from support.waiting import eventually


def shop(dsn: str | None = None, **options: Any) -> tuple[Penstock, Kind[..., Any]]:
    app = Penstock(dsn, name="shop", **options)
    app.queue("q")

    @app.job(queue="q")
    def task(n: int) -> None: ...

    return app, task


def count(dsn: str, what: str) -> int:
    with psycopg.connect(dsn) as conn:
        [(number,)] = conn.execute(f"select count(*) from {what}".encode()).fetchall()
    return int(number)


OURS = "pg_stat_activity where datname = current_database() and application_name = 'penstock'"


async def test_many_at_once_open_one_engine(database: str) -> None:
    app, task = shop(database)
    tickets = await asyncio.gather(*(task.submit(n=n) for n in range(50)))
    assert len({ticket.id for ticket in tickets}) == 50
    opened = await asyncio.gather(*(app.engine() for _ in range(5)))
    assert len(set(map(id, opened))) == 1
    await app.close()


@pytest.mark.parametrize("where", ["version.admit", "is_pooled"])
async def test_a_connection_that_breaks_while_the_app_connects_is_an_outage(
    database: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It is not an error of the driver, which callers do not know."""
    app, task = shop(database)

    async def breaks(of: Any) -> None:
        conn = await asyncpg.connect(of) if isinstance(of, str) else of
        async with conn.transaction():
            conn.terminate()
            raise Unavailable

    with monkeypatch.context() as patch:
        patch.setattr(f"penstock.client.engines.{where}", breaks)
        with pytest.raises(Unavailable):
            await task.submit(n=1)
    assert (await task.submit(n=2)).kind == "task"
    await app.close()


async def test_one_caller_may_give_up_while_others_wait(database: str) -> None:
    app, task = shop(database)
    first = asyncio.create_task(task.submit(n=1))
    second = asyncio.create_task(task.submit(n=2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).kind == "task"
    with pytest.raises(asyncio.CancelledError):
        await first
    await app.close()


def test_each_run_has_its_own_connections_and_leaves_none(database: str) -> None:
    """Several `asyncio.run` in one process, without a call of close."""
    app, task = shop(database)
    for n in range(3):
        asyncio.run(task.submit(n=n))
        gc.collect()  # a connection left open would warn, and a warning is an error here
        assert app._engines._by_loop == {}
    assert count(database, "penstock.job") == 3
    assert count(database, OURS) == 0


def test_a_script_that_exits_right_after_its_submit_has_notified_the_workers(database: str) -> None:
    _app, task = shop(database)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("listen penstock_job")
        asyncio.run(task.submit(n=1))
        assert [
            notification.payload for notification in conn.notifies(timeout=5, stop_after=1)
        ] == ["q"]


def test_threads_with_their_own_loops(database: str) -> None:
    app, task = shop(database)
    with ThreadPoolExecutor(4) as pool:
        tickets = list(pool.map(lambda n: asyncio.run(task.submit(n=n)), range(8)))
    assert len({ticket.id for ticket in tickets}) == 8
    assert app._engines._by_loop == {}


def test_a_loop_that_was_closed_without_its_end_is_forgotten(database: str) -> None:
    app, _task = shop(database)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(app.engine())
    held = app._engines._by_loop[loop]
    loop.run_until_complete(loop.shutdown_asyncgens())
    app._engines._by_loop[loop] = held  # as if its engine were not closed
    loop.close()
    asyncio.run(app.engine())
    assert loop not in app._engines._by_loop


async def test_after_close_the_next_use_opens_again(database: str) -> None:
    app, task = shop(database)
    await app.close()  # nothing is open yet
    first = await app.engine()
    await app.close()
    await app.close()
    with pytest.raises(Unavailable):
        await first.jobs.wake(["q"])
    await task.submit(n=1)
    assert await app.engine() is not first
    await app.close()


async def test_declaring_writes_nothing_if_nothing_changed(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _task = shop(database)
    await app.engine()
    await app.close()
    declarations: list[str] = []

    async def declared(_: object, name: str, *_args: object, **_options: object) -> None:
        declarations.append(name)

    async with await Engine.open(database) as engine:
        monkeypatch.setattr(type(engine.queues), "declare", declared)
        monkeypatch.setattr(type(engine.queues), "declare_kind", declared)
        again, _ = shop(database)
        await again.declare(engine)
        assert declarations == []
        again.queue("other")
        await again.declare(engine)
        assert declarations == ["other"]


async def test_a_role_that_may_only_call_functions_declares_as_well(database: str) -> None:
    app, _task = shop(database)

    class Closed(Engine):
        def transaction(self) -> Any:
            raise Misconfigured("The database role lacks a right: table queue.")

    async with await Closed.open(database) as engine:
        await app.declare(engine)
    assert count(database, "penstock.kind") == 1


async def test_a_server_with_an_old_schema_is_refused(blank: str) -> None:
    app, task = shop(blank)
    with pytest.raises(SchemaMismatch, match="run `penstock migrate up`"):
        await task.submit(n=1)
    assert count(blank, OURS) == 0
    assert app._engines._by_loop == {}


async def test_a_failed_first_use_is_tried_again() -> None:
    app, task = shop("postgresql://nobody:sesame@127.0.0.1:1/none")
    for _ in range(2):
        results = await asyncio.gather(
            *(task.submit(n=n) for n in range(3)), return_exceptions=True
        )
        assert all(isinstance(result, Unavailable) for result in results)
        assert "sesame" not in str(results)
    assert app._engines._by_loop == {}


def test_settings_are_read_at_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Penstock()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_DSN", "postgresql://environment/x")
    assert app.settings.dsn == "postgresql://environment/x"
    assert app.settings.home == tmp_path / ".penstock"
    assert Penstock("postgresql://argument/x").settings.dsn == "postgresql://argument/x"
    for odd in ("mysql://u:open-sesame@x", "", 5):
        with pytest.raises(
            Invalid, match=r"^dsn must be an address of the form postgresql://"
        ) as caught:
            Penstock(cast("str", odd))
        assert "open-sesame" not in str(caught.value)
    assert Penstock(home="here").settings.home == tmp_path / "here"


@quiet_forks
def test_a_forked_child_opens_its_own(database: str) -> None:
    """gunicorn with --preload, or multiprocessing: the parent keeps its connections."""
    app, task = shop(database)
    app.sync.submit(task, n=0)

    async def parent() -> None:
        engine = await app.engine()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                app.sync.submit(task, n=1)
                other = threading.Thread(target=lambda: asyncio.run(task.submit(n=2)))
                other.start()
                other.join()
                app.sync.close()
                code = 0
            finally:
                os._exit(code)

        async def has_exited() -> bool:
            found, status = os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222  # it does not wait
            assert status == 0
            return found == pid

        await eventually(has_exited, "the exit of the child")
        assert await app.engine() is engine
        await task.submit(n=3)

    asyncio.run(parent())
    app.sync.submit(task, n=4)
    app.sync.close()
    assert count(database, "penstock.job") == 5


SCRIPT = """
import asyncio, sys
from penstock import Penstock
app = Penstock(home=sys.argv[1])
app.queue("q")
@app.job(queue="q")
def task(n: int) -> None: ...
async def main():
    await asyncio.gather(*(task.submit(n=n) for n in range(5)))
    return len([job async for job in count()])
async def count():
    async with (await app.engine()).transaction() as conn:
        for row in await conn.fetch("select id from penstock.job"):
            yield row
asyncio.run(main())
asyncio.run(main())
app.sync.submit(task, n=1)
print(asyncio.run(main()))
"""


@pytest.mark.timeout(120)
def test_two_processes_that_use_one_embedded_home_for_the_first_time_at_once(
    tmp_path: Path,
) -> None:
    """Without a set-up call, from an empty folder; the last one to leave stops the server."""
    home = tmp_path / "home"
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(home)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment,
        )
        for _ in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=90) for process in processes]
        assert [(out.isdecimal(), err) for out, err in ((o.strip(), e) for o, e in outputs)] == [
            (True, "")
        ] * 2
        assert max(int(out) for out, _ in outputs) == 32
        assert starts(home) in (1, 2)  # two if one exited before the other started
        assert not runs(home)
    finally:
        end_servers(tmp_path)


def test_the_end_of_another_kind_of_loop_closes_its_engine_too(database: str) -> None:
    app, task = shop(database)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(task.submit(n=1))
        assert count(database, OURS) > 0
    gc.collect()
    assert app._engines._by_loop == {}
    assert count(database, OURS) == 0


async def test_an_embedded_server_is_used_once_per_process_and_left_by_the_last_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class Server:
        dsn = "postgresql://embedded"

        @classmethod
        def use(cls, home: Path) -> "Server":
            calls.append(f"use {home.name}")
            return cls()

        def leave(self) -> None:
            calls.append("leave")

    monkeypatch.setattr(engines, "Embedded", Server)
    first, second = Penstock(home=tmp_path / "home"), Penstock(home=tmp_path / "home")
    assert {*await asyncio.gather(*(app.dsn() for app in (first, second, first)))} == {Server.dsn}
    await first.close()
    await first.close()
    assert calls == ["use home"]
    await second.close()
    assert calls == ["use home", "leave"]
    await second.dsn()
    gone = weakref.ref(second)
    del second  # dropped without close: it is no longer a user

    async def is_gone() -> bool:
        gc.collect()
        return gone() is None

    # The thread that returned its database may hold it a moment longer.
    await eventually(is_gone, "no reference to the app")
    await first.dsn()
    await first.close()
    assert calls == ["use home", "leave", "use home", "leave"]
