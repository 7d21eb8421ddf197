"""Driven queues: a submit starts the first call, after its commit."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from penstock import Misconfigured, Penstock
from penstock.client.config.toml import load
from penstock.errors import Invalid
from penstock.net import drive_call
from penstock.security.roots import Roots
from support.signing import SECRET
from support.waiting import eventually


class Api:
    """Listens at the API's address, and records the calls."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.tokens: list[str] = []
        self.status = 200
        self.silent = False

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.paths.append(head.split()[1])
        self.tokens.append(head.partition("Bearer ")[2].split()[0])
        if not self.silent:
            writer.write(f"HTTP/1.1 {self.status} x\r\ncontent-length: 2\r\n\r\n{{}}".encode())
            await writer.drain()
        else:
            await reader.read()  # until the caller gives up
        writer.close()


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    api = Api()
    await api.open()
    monkeypatch.setenv("PENSTOCK_PUBLIC_URL", f"{api.url}/queue")
    monkeypatch.setenv("PENSTOCK_SECRET", SECRET)
    yield api
    api.close()


@pytest.fixture
def driven(app: Penstock) -> Penstock:
    app.queue("marks", drive="http")

    @app.job(queue="marks")
    async def mark(n: int) -> int:
        return n

    return app


async def _called(api: Api) -> bool:
    return bool(api.paths)


async def test_a_submit_starts_the_first_call(driven: Penstock, api: Api) -> None:
    """M12: with a token for this queue only."""
    await driven.kinds["mark"].submit(n=1)
    await eventually(lambda: _called(api), "a call")
    assert api.paths[0] == "/queue/v1/queues/marks/process"
    roots = Roots((SECRET,))
    assert drive_call.is_token(roots, api.tokens[0], "marks")
    assert not drive_call.is_token(roots, api.tokens[0], "other")


async def test_many_submits_start_few_calls(driven: Penstock, api: Api) -> None:
    kind = driven.kinds["mark"]
    for n in range(50):
        await kind.submit(n=n)
    await kind.submit_many([{"n": n} for n in range(50)])
    await driven.close()
    assert 1 <= len(api.paths) <= 10


async def test_a_submit_does_not_wait_for_its_call(driven: Penstock, api: Api) -> None:
    api.silent = True
    async with asyncio.timeout(8):
        await driven.kinds["mark"].submit(n=1)
        await driven.close()
    assert len(api.paths) == 1


async def test_an_api_that_is_unavailable_or_refuses_does_not_fail_submits(
    driven: Penstock,
    api: Api,
    conn: asyncpg.Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drive_call, "ANSWER_SECONDS", 20)
    monkeypatch.setattr(drive_call, "WARN_SECONDS", 0)
    monkeypatch.setattr(drive_call, "_warned", {})
    api.status = 401
    await driven.kinds["mark"].submit(n=1)
    await driven.close()
    assert "refused the call with status 401" in caplog.text
    api.close()
    await driven.kinds["mark"].submit(n=2)
    await driven.close()
    assert "does not accept connections" in caplog.text
    assert await conn.fetchval("select count(*) from penstock.job") == 2


async def test_in_the_callers_transaction_the_call_follows_its_commit(
    driven: Penstock, api: Api, conn: asyncpg.Connection
) -> None:
    """M12: no call is made for a job that is not committed."""
    kind = driven.kinds["mark"]
    await driven.engine()
    transaction = conn.transaction()
    await transaction.start()
    await kind.using(conn=conn).submit(n=1)
    # Meanwhile the waiting task polls at least once and finds no job.
    await kind.using(dedupe_key="x").submit(n=2)
    await eventually(lambda: _called(api), "the call of the other submit")
    before = len(api.paths)
    await transaction.commit()

    async def again() -> bool:
        return len(api.paths) > before

    await eventually(again, "a call after the commit")


async def test_a_blocking_submit_starts_it_too(driven: Penstock, api: Api) -> None:
    await asyncio.to_thread(driven.sync.submit, "mark", n=1)
    await eventually(lambda: _called(api), "a call")


async def test_a_script_that_exits_at_once_has_called(
    api: Api, database: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(
        "import asyncio\n"
        "from penstock import Penstock\n"
        f"app = Penstock({database!r}, name='script')\n"
        "@app.job(queue=app.queue('marks', drive='http'))\n"
        "async def mark(n: int) -> int: ...\n"
        "async def main() -> None:\n"
        "    await mark.submit(n=1)\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "script.py"], cwd=tmp_path, check=True, timeout=60
    )
    assert done.returncode == 0
    assert api.paths == ["/queue/v1/queues/marks/process"]


async def test_without_an_address_it_is_refused_before_anything_is_written(
    driven: Penstock, conn: asyncpg.Connection
) -> None:
    with pytest.raises(Misconfigured, match="set it to the address at which the API is reached"):
        await driven.kinds["mark"].submit(n=1)
    with pytest.raises(Misconfigured, match="PENSTOCK_PUBLIC_URL"):
        await driven.kinds["mark"].submit_many([{"n": 1}])
    assert await conn.fetchval("select count(*) from penstock.job") == 0


async def test_app_testing_runs_driven_jobs(tmp_path: Path) -> None:
    app = Penstock(home=tmp_path / "home", name="tested")

    @app.job(queue=app.queue("marks", drive="http"))
    async def mark(n: int) -> int:
        return n

    async with app.testing() as t:
        ticket = await mark.submit(n=3)
        await t.drain()
        assert await ticket.result(timeout=5) == 3


async def test_it_is_declared_in_code_and_toml(
    driven: Penstock, conn: asyncpg.Connection, tmp_path: Path
) -> None:
    await driven.engine()
    assert await conn.fetchval("select drive from penstock.queue") == "http"
    with pytest.raises(Invalid, match="drive is 'cron'; it may be worker, http"):
        driven.queue("odd", drive="cron")  # type: ignore[arg-type]
    file = tmp_path / "penstock.toml"
    file.write_text('[queues.q]\ndrive = "http"\n')
    assert load(file).queues["q"].driven
    assert load(file).queues["q"].declared == {"drive": "http"}
