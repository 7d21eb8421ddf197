"""The API is killed between a commit and its answer: a repeated request gets the same job, once.

Every submit has an Idempotency-Key, and is repeated with it until there is an answer. However often
and whenever the server dies: one job and one charge for each key, and each answered job exists.
"""

import asyncio
import random
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest

from support import factory
from support.http.serving import Served, serving
from support.shapes import Connect, Scale
from support.waiting import eventually

PRICE = 3
MONEY = 1_000_000
ACCOUNTS = ("u1", "u2")
CLIENTS = 8
# A client without an answer from a dead server repeats its request.
ASK_SECONDS = 10.0
PAUSE_SECONDS = 0.05
# Not longer than a request takes, so that kills hit every moment of a request.
LONGEST_LIFE_SECONDS = 0.4
# An advisory lock that delays commits: see `stalled`.
STALL = 7_406_006


@pytest.fixture
async def priced(conn: asyncpg.Connection) -> asyncpg.Connection:
    await factory.queue(conn)
    await conn.execute("select penstock.declare_kind('paid', 'q', $1)", {"price": PRICE})
    for account in ACCOUNTS:
        await conn.execute("select penstock.grant_credits($1, $2, 'test')", account, MONEY)
    return conn


class Client:
    """A client that repeats each submit until it gets an answer, like every careful caller."""

    def __init__(self, server: Served, name: str) -> None:
        self._http = server.client()
        self._name = name
        self.answers: dict[str, str] = {}
        """The job of the answer by key."""
        self.tries: Counter[str] = Counter()
        self.replays = 0

    async def submit(self, key: str, account: str) -> None:
        body = {"kind": "paid", "payload": {"key": key}, "account": account}
        while True:
            self.tries[key] += 1
            try:
                answer = await self._http.post(
                    "/v1/jobs", json=body, headers={"Idempotency-Key": key}, timeout=ASK_SECONDS
                )
            except httpx.HTTPError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if answer.status_code in (409, 500, 503):
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            assert answer.status_code == 201, answer.text
            self.replays += answer.headers.get("Idempotent-Replayed") == "true"
            self.answers[key] = answer.json()["id"]
            return

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, many: int) -> None:
        for number in range(many):
            key, account = f"{self._name}-{number}", random.choice(ACCOUNTS)
            await self.submit(key, account)
            if number % 5 == 0:  # although there was an answer
                before = self.answers[key]
                await self.submit(key, account)
                assert self.answers[key] == before


MakeClient = Callable[[Served, str], Client]


@pytest.fixture
async def make_client() -> AsyncIterator[MakeClient]:
    made: list[Client] = []

    def make(server: Served, name: str) -> Client:
        made.append(Client(server, name))
        return made[-1]

    yield make
    for client in made:
        await client.close()


async def assert_once(conn: asyncpg.Connection, clients: list[Client]) -> None:
    """One job and one reservation for each key; each answer names its job."""
    answers = {key: job for client in clients for key, job in client.answers.items()}
    rows = await conn.fetch("select id, payload ->> 'key' as key, reserved from penstock.job")
    found = {row["key"]: str(row["id"]) for row in rows}
    assert len(rows) == len(found), "a key has two jobs"
    assert found == answers
    assert {row["reserved"] for row in rows} == {PRICE}
    spent = await conn.fetchval(
        "select sum($1 - balance) from penstock.account where id <> 0", MONEY
    )
    assert spent == PRICE * len(answers)
    lines = await conn.fetchval("select count(*) from penstock.ledger where kind = 'reserve'")
    assert lines == len(answers)


@pytest.mark.timeout(900)
async def test_killed_at_any_moment_each_key_has_one_job_and_one_charge(
    priced: asyncpg.Connection,
    make_client: MakeClient,
    database: str,
    tmp_path: Path,
    scale: Scale,
) -> None:
    """Many kills, at random moments."""
    deaths = 0
    with serving(database, tmp_path) as server:
        await server.start()
        clients = [make_client(server, f"c{n}") for n in range(CLIENTS)]
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(client.run(scale(15, 800))) for client in clients]
            for _ in range(scale(3, 100)):
                if all(task.done() for task in work):
                    break
                await asyncio.sleep(random.uniform(0.05, LONGEST_LIFE_SECONDS))
                server.kill()
                deaths += 1
                await server.start()
        await assert_once(priced, clients)
    assert deaths >= 2
    assert sum(client.tries.total() for client in clients) > sum(
        len(client.answers) for client in clients
    )


@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
async def test_killed_at_the_worst_moment(
    *,
    priced: asyncpg.Connection,
    make_client: MakeClient,
    connect: Connect,
    database: str,
    tmp_path: Path,
    when: str,
) -> None:
    """The submit waits in the database, at a chosen moment, until its server is dead."""
    with serving(database, tmp_path) as server:
        await server.start()
        client = make_client(server, "c")
        async with stalled(priced, await connect(), committed=when == "after the commit"):
            asked = asyncio.create_task(client.submit("k", "u1"))
            await eventually(lambda: _waits(priced), "the submit waits")
            server.kill()
            if when == "before the commit":
                # The server rolls back a dead client's transaction when it notices.
                await priced.execute(
                    "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
                    " where application_name = 'penstock' and datname = current_database()"
                )
        if when == "after the commit":
            await eventually(lambda: _jobs(priced), "the first submit is committed")
            assert client.answers == {}, "no client got an answer"
        else:
            assert not await _jobs(priced)
        await server.start()
        await asyncio.wait_for(asked, 30)
        await assert_once(priced, [client])
        assert client.tries["k"] >= 2
        assert client.replays == (when == "after the commit")


@pytest.mark.parametrize("cut", ["the answer", "the request"])
async def test_a_broken_connection_is_like_a_dead_server_for_its_client(
    priced: asyncpg.Connection,
    make_client: MakeClient,
    database: str,
    tmp_path: Path,
    cut: str,
) -> None:
    """A proxy that passes on all but the end; each repetition gets a little further."""
    with serving(database, tmp_path) as server:
        await server.start()
        async with cutting(server.port, cut) as (port, cuts):
            client = make_client(Served(database, tmp_path, port), "c")
            await asyncio.wait_for(client.submit("k", "u1"), 60)
        await assert_once(priced, [client])
    assert len(cuts) >= 3
    assert client.replays == (cut == "the answer")


@asynccontextmanager
async def stalled(
    conn: asyncpg.Connection, holder: asyncpg.Connection, *, committed: bool
) -> AsyncIterator[None]:
    """Let submits wait in the middle of their commit, until the end of the block.

    Postgres completes a commit even if its client has died, without an answer; unless its session
    is terminated first.
    """
    await conn.execute(
        "create function public.stall() returns trigger language plpgsql as $$"
        f" begin perform pg_advisory_xact_lock({STALL}); return null; end $$"
    )
    await conn.execute(
        "create constraint trigger stall after insert on penstock.job"
        " deferrable initially deferred for each row execute function public.stall()"
    )
    await holder.execute(f"select pg_advisory_lock({STALL})")
    try:
        yield
    finally:
        # Before the trigger is dropped, which would wait for it.
        await holder.execute(f"select pg_advisory_unlock({STALL})")
        if committed:
            await eventually(lambda: _jobs(conn), "what waited in its commit is committed")
        await conn.execute("drop trigger stall on penstock.job")


async def _waits(conn: asyncpg.Connection) -> bool:
    found: bool = await conn.fetchval(
        "select exists (select from pg_locks where locktype = 'advisory' and objid = $1"
        " and not granted)",
        STALL,
    )
    return found


async def _jobs(conn: asyncpg.Connection) -> int:
    found: int = await conn.fetchval("select count(*) from penstock.job")
    return found


async def _whole(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    [length] = re.findall(rb"content-length: (\d+)", head, re.IGNORECASE)
    return head + await reader.readexactly(int(length))


@asynccontextmanager
async def cutting(port: int, what: str) -> AsyncIterator[tuple[int, list[int]]]:
    """A proxy in front of a port. Of each connection it passes on so many bytes more than of the
    one before: of the request, or of its answer; then it is gone. Also the lengths, as they were.
    """
    cuts: list[int] = []
    open_ = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", port)
        most = len(cuts) * 150
        try:
            asked = await _whole(reader)
            if what == "the request" and most < len(asked):
                to.write(asked[:most])
                await to.drain()
                cuts.append(most)
                return
            to.write(asked)
            answer = await _whole(there)
            if what == "the answer" and most < len(answer):
                writer.write(answer[:most])
                cuts.append(most)
                return
            writer.write(answer)
            await writer.drain()
        finally:
            for one in (writer, to):
                one.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(handle(reader, writer))
        open_.add(task)
        task.add_done_callback(open_.discard)

    proxy = await asyncio.start_server(begin, "127.0.0.1", 0)
    try:
        yield proxy.sockets[0].getsockname()[1], cuts
    finally:
        proxy.close()
        await proxy.wait_closed()
        await asyncio.gather(*open_, return_exceptions=True)


async def test_a_key_answers_for_ever(
    priced: asyncpg.Connection, make_client: MakeClient, database: str, tmp_path: Path
) -> None:
    """Also after the job has finished, and from another server: its present state and no charge."""
    key = str(uuid.uuid4())
    with serving(database, tmp_path) as first, serving(database, tmp_path) as second:
        await first.start()
        client = make_client(first, "c")
        await client.submit(key, "u1")
        first.kill()
        worker = await factory.worker(priced)
        await factory.finish(priced, worker, await factory.claim(priced, worker))
        await second.start()
        again = make_client(second, "d")
        await again.submit(key, "u1")
    assert again.answers == client.answers
    assert again.replays == 1
    balance = await priced.fetchval("select balance from penstock.account where name = 'u1'")
    assert balance == MONEY - PRICE
