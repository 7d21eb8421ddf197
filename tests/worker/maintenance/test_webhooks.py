"""Messages about finished jobs, to receivers that are sound, slow, hostile or gone."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from standardwebhooks import Webhook

from penstock import Invalid, Penstock
from penstock.client.config.toml import load
from penstock.security import signature
from penstock.security.roots import Roots
from penstock.worker.worker import Options, Worker
from support import factory
from support.clock import Clock
from support.signing import SECRET
from support.waiting import eventually
from support.worker.crew import declare, working

ROOTS = Roots((SECRET,))
Reply = Callable[[], Awaitable[web.Response]]


class Receiver:
    """Records messages, and answers as the test asks it to."""

    def __init__(self) -> None:
        self.came: list[tuple[dict[str, str], bytes]] = []
        self.url = ""
        self.status = 200
        self.at_once = self.most_at_once = 0
        self.held: asyncio.Event | None = None

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.came]

    async def until(self, n: int, *, seconds: float = 15) -> None:
        async def enough() -> bool:
            return len(self.came) >= n

        await eventually(enough, f"{n} messages arrive", seconds=seconds)

    async def take(self, request: web.Request) -> web.Response:
        self.came.append((dict(request.headers), await request.read()))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.held is not None:
                await self.held.wait()
        finally:
            self.at_once -= 1
        return web.Response(status=self.status)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/hook", receiver.take)
    server = TestServer(app)
    await server.start_server()
    receiver.url = f"http://127.0.0.1:{server.port}/hook"
    try:
        yield receiver
    finally:
        if receiver.held is not None:
            receiver.held.set()
        await server.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_SECRET", SECRET)
    monkeypatch.setenv("PENSTOCK_ALLOW_PRIVATE", "1")
    monkeypatch.chdir(tmp_path)


def made(database: str, webhook: str | None = None) -> Penstock:
    app = Penstock(database, name="tests")
    queue = app.queue("q")

    @app.job(queue=queue, name="f", webhook=webhook)
    async def double(n: int) -> int:
        return 2 * n

    assert double.name
    return app


async def states(conn: asyncpg.Connection) -> Counter[str]:
    rows = await conn.fetch("select penstock._delivery_status(d) as s from penstock.delivery d")
    return Counter(row["s"] for row in rows)


async def until_delivered(conn: asyncpg.Connection, n: int) -> None:
    async def all_there() -> bool:
        return (await states(conn))["delivered"] >= n

    await eventually(all_there, f"{n} are delivered", seconds=20)


async def test_the_app_and_the_caller_get_messages_with_separate_signatures(
    database: str, conn: asyncpg.Connection, receiver: Receiver
) -> None:
    """E15: checked with the reference verifier; no secret verifies the messages of another."""
    app = made(database, receiver.url + "?to=app")
    ticket = await app.kinds["f"].using(account="u1", webhook_url=receiver.url).submit(n=21)
    async with working(database, app):
        await receiver.until(2)
        await until_delivered(conn, 2)
    await app.close()
    shown = await factory.read(conn, ticket.id)
    rows = await conn.fetch("select id, trusted from penstock.delivery")
    trusted = {str(row["id"]): row["trusted"] for row in rows}
    secrets = {
        True: signature.of_webhooks(ROOTS, None, trusted=True).written[0],
        False: signature.of_webhooks(ROOTS, "u1", trusted=False).written[0],
    }
    assert {headers["webhook-id"] for headers, _ in receiver.came} == set(trusted)
    for headers, body in receiver.came:
        own = trusted[headers["webhook-id"]]
        message = Webhook(secrets[own]).verify(body, headers)
        assert message["type"] == "job.succeeded"
        assert message["timestamp"] == shown["finished_at"]
        attempts = shown["attempts"]
        if not own:  # the caller's address is not an operator's: the worker is not named
            attempts = [attempt | {"worker": None, "message": None} for attempt in attempts]
        state = {"position": None, "waiting_for": None, "attempts": attempts}
        assert message["data"] == shown | state
        assert message["data"]["result"] == 42
        for wrong in (secrets[not own], signature.of_functions(ROOTS).written[0]):
            with pytest.raises(Exception, match="No matching signature"):
                Webhook(wrong).verify(body, headers)


async def test_a_message_that_is_not_accepted_is_sent_again_under_its_id(
    database: str, conn: asyncpg.Connection, clock: Clock, receiver: Receiver
) -> None:
    receiver.status = 500
    app = made(database, receiver.url)
    async with working(database, app):
        await factory.submit(conn, "f", payload={"n": 1})
        for tries, wait in ((1, "6s"), (2, "34s")):
            await receiver.until(tries)
            await eventually(
                lambda: conn.fetchval("select last_status = 500 from penstock.delivery"), "noted"
            )
            await clock.advance(wait, beats=True)
        receiver.status = 204
        await until_delivered(conn, 1)
    assert len({headers["webhook-id"] for headers, _ in receiver.came}) == 1
    assert len({body for _, body in receiver.came}) == 1
    kept = await conn.fetchrow("select tries, last_status, last_error from penstock.delivery")
    assert kept is not None
    assert tuple(kept) == (len(receiver.came), 204, None)


async def test_gone_is_gone(database: str, conn: asyncpg.Connection, receiver: Receiver) -> None:
    receiver.status = 410
    async with working(database, made(database, receiver.url)):
        await factory.submit(conn, "f", payload={"n": 1})

        async def failed_for_good() -> bool:
            return (await states(conn))["given_up"] == 1

        await eventually(failed_for_good, "it has failed for good")
    assert len(receiver.came) == 1


async def test_a_receiver_that_hangs_delays_no_other(
    database: str, conn: asyncpg.Connection, receiver: Receiver
) -> None:
    """R-F22: it occupies two calls, and all messages to the other receiver arrive meanwhile."""
    async with receiving() as hanging:
        hanging.held = asyncio.Event()
        app = made(database)
        async with working(database, app):
            rows = [
                {"kind": "f", "payload": {"n": n}, "webhook_url": url}
                for n in range(30)
                for url in (hanging.url, hanging.url, receiver.url)
            ]
            await factory.submit_rows(conn, rows)
            await receiver.until(30)
            assert len(hanging.came) == hanging.most_at_once == 2
    assert receiver.most_at_once <= 2


async def test_two_workers_send_each_message_once(
    database: str, conn: asyncpg.Connection, receiver: Receiver
) -> None:
    app = made(database, receiver.url)
    async with working(database, app), working(database, app, name="other"):
        rows = [{"kind": "f", "payload": {"n": n}} for n in range(60)]
        await factory.submit_rows(conn, rows)
        await until_delivered(conn, 60)
    seen = Counter(headers["webhook-id"] for headers, _ in receiver.came)
    assert (len(seen), set(seen.values())) == (60, {1})
    assert receiver.most_at_once <= 2


async def test_a_callers_address_inside_the_network_is_not_called(
    database: str,
    conn: asyncpg.Connection,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R-F22, C5: refused at submit, and at the call if it was submitted by plain SQL."""
    monkeypatch.delenv("PENSTOCK_ALLOW_PRIVATE")
    app = made(database)
    for url in (receiver.url, "https://127.0.0.1/x", "https://localhost/x"):
        with pytest.raises(Invalid) as caught:
            await app.kinds["f"].using(webhook_url=url).submit(n=1)
        assert (caught.value.code, caught.value.field) == ("address_not_allowed", "webhook_url")
        with pytest.raises(Invalid):
            app.sync.using(app.kinds["f"], webhook_url=url)
    await app.close()
    async with working(database, app):
        await factory.submit(conn, "f", payload={"n": 1}, webhook_url=receiver.url)

        async def failed_for_good() -> bool:
            return (await states(conn))["given_up"] == 1

        await eventually(failed_for_good, "it has failed for good")
    assert receiver.came == []


async def test_every_way_to_submit_keeps_the_address(
    database: str, conn: asyncpg.Connection
) -> None:
    app = made(database)
    kind = app.kinds["f"].using(webhook_url="http://10.0.0.1/x")  # allowed by the operator here
    await kind.submit(n=1)
    await kind.submit_many([{"n": 2}, {"n": 3}])
    sync = app.sync.using(app.kinds["f"], webhook_url="http://10.0.0.1/x")
    await asyncio.to_thread(sync.submit, n=4)
    await asyncio.to_thread(sync.submit_many, [{"n": 5}])
    async with conn.transaction():
        await kind.using(conn=conn).submit(n=6)
    await app.close()
    assert await conn.fetchval("select count(*) from penstock.job_webhook") == 6
    assert await conn.fetchval("select count(*) from penstock.job") == 6


async def test_a_replayed_message_is_sent_again(
    database: str, conn: asyncpg.Connection, receiver: Receiver
) -> None:
    async with working(database, made(database, receiver.url)):
        await factory.submit(conn, "f", payload={"n": 1})
        await until_delivered(conn, 1)
        await conn.execute("select penstock.replay_delivery(id) from penstock.delivery")
        await receiver.until(2)
    assert len({headers["webhook-id"] for headers, _ in receiver.came}) == 1


async def test_a_bounded_run_sends_due_messages(
    database: str, conn: asyncpg.Connection, receiver: Receiver
) -> None:
    app = made(database, receiver.url)
    await declare(database, app)
    await factory.submit(conn, "f", payload={"n": 1})
    await Worker(database, app.handlers(), Options(name="once", until_idle=True)).run()
    assert (len(receiver.came), await states(conn)) == (1, {"delivered": 1})


async def test_app_testing_sends_nothing(receiver: Receiver, tmp_path: Path) -> None:
    """A test of an app must not call its receivers."""
    app = Penstock(home=tmp_path / "home", name="tests")
    queue = app.queue("q")

    @app.job(queue=queue, webhook=receiver.url)
    async def quiet() -> None: ...

    async with app.testing() as t:
        await quiet.submit()
        assert await t.drain() == 1
    assert receiver.came == []


async def test_without_a_secret_nothing_is_sent_and_the_log_says_why(
    *,
    database: str,
    conn: asyncpg.Connection,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("PENSTOCK_SECRET")
    async with working(database, made(database, receiver.url)):
        await factory.submit(conn, "f", payload={"n": 1})

        async def logged() -> bool:
            return "PENSTOCK_SECRET is not set" in caplog.text

        await eventually(logged, "the log names the reason", seconds=15)
    assert receiver.came == []
    assert await states(conn) == {"pending": 1}


def test_a_webhook_of_a_kind_in_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "https://app.example.org/hooks/s3cret")
    text = """
    [queues.q]
    [jobs.f]
    queue = "q"
    handler = "http"
    url = "http://127.0.0.1:1"
    fields = { n = "int" }
    webhook = "$HOOK"
    """
    (tmp_path / "penstock.toml").write_text(text)
    kind = load(tmp_path / "penstock.toml").kinds["f"]
    assert kind.declared["webhook"] == "https://app.example.org/hooks/s3cret"
    for wrong in ("example.org/x", "https://user:pw@example.org/", "ftp://example.org"):
        (tmp_path / "penstock.toml").write_text(text.replace("$HOOK", wrong))
        with pytest.raises(Exception, match="webhook") as caught:
            load(tmp_path / "penstock.toml")
        assert "pw@" not in str(caught.value)
