"""The hub: one poll for all watchers; slow clients, lost listeners, outages, several servers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from penstock.db.connections.listener import listen
from penstock.engine.queries.events import BATCH_ITEMS, Scope
from penstock.http.live import poll
from penstock.http.live.feeds import BatchFeed, encode
from penstock.http.routes.stream import EventStream
from support.factory import claim, finish, queue, submit, submit_rows, worker
from support.http.listening import Listener, listening
from support.http.serving import Served, serving
from support.http.site import Site
from support.shapes import Scale
from support.waiting import eventually

TOPIC = "/v1/topics/a/events"


@pytest.fixture
async def plain(site: Site, conn: asyncpg.Connection) -> Site:
    """A queue `q` with a kind of that name, without code."""
    await queue(conn)
    return site


async def in_topic(conn: asyncpg.Connection, **fields: Any) -> Any:
    return await submit(conn, topic="a", **fields)


async def sessions(conn: asyncpg.Connection) -> list[int]:
    """The sessions in which hubs listen."""
    rows = await conn.fetch(
        "select pid from pg_stat_activity"
        " where datname = current_database() and application_name = 'penstock events'"
    )
    return [row["pid"] for row in rows]


# --- costs ----------------------------------------------------------------------------------------


async def test_many_watchers_share_one_read_and_one_session(
    plain: Site, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await in_topic(conn)
    await plain.start()
    read: list[Any] = []
    events = plain.api.state.backend.engine.events
    really: Callable[..., Awaitable[Any]] = events.read_jobs

    async def counted(ids: Any, *, positions: int, public: bool) -> Any:
        read.extend((job, public) for job in ids)
        return await really(ids, positions=positions, public=public)

    monkeypatch.setattr(events, "read_jobs", counted)
    async with AsyncExitStack() as stack:
        paths = [TOPIC, f"/v1/jobs/{job}/events"] * 30
        listeners = [await stack.enter_async_context(listening(plain.admin, p)) for p in paths]
        for one in listeners:
            await one.next()
        assert len(await sessions(conn)) == 1
        read.clear()
        await conn.execute("select penstock.cancel_job($1)", job)
        for one in listeners:
            await one.status("cancelled", job)
        assert read == [(job, False)], "it was read once for all of them"


@pytest.mark.parametrize("moves", ["a job of the topic", "a job of another topic"])
async def test_positions_of_a_topic_are_read_together(
    plain: Site, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, moves: str
) -> None:
    """No two jobs are #3, and one of them is #1: all positions are sent in one piece."""
    first = await (in_topic(conn) if moves == "a job of the topic" else submit(conn, topic="b"))
    jobs: list[str] = []
    await plain.start()
    watcher = plain.api.state.backend.live.watch_scope(Scope("a", None))
    positions: dict[str, int] = {}
    pieces: list[list[int]] = []
    gone: list[bool] = []

    async def watch() -> None:
        while True:
            piece = await watcher.events()
            for line in piece.decode().splitlines():
                if line.startswith("data: "):
                    job = json.loads(line.removeprefix("data: "))
                    positions[job["id"]] = job["position"]
                    if job["id"] == str(first) and job["status"] == "cancelled":
                        gone.append(True)
                        pieces.clear()  # earlier pieces are of another read
            if piece:
                pieces.append([positions[job] for job in jobs if job in positions])
            await watcher.wait()

    def are(wanted: list[int]) -> Callable[[], Awaitable[bool]]:
        async def reached() -> bool:
            return pieces[-1:] == [wanted]

        return reached

    watching = asyncio.create_task(watch())
    try:
        for n in range(4):
            # They are refreshed at different times, like jobs that were submitted seconds apart.
            monkeypatch.setattr(poll, "QUEUED_REFRESH_SECONDS", 0.5 if n % 2 else 3)
            jobs.append(str(await in_topic(conn)))
            await eventually(are(list(range(2, n + 3))), "the job was sent")
        pieces.clear()
        await conn.execute("select penstock.cancel_job($1)", first)
        await eventually(are([1, 2, 3, 4]), "all have moved")
    finally:
        watching.cancel()
        watcher.leave()
    assert len(gone) == (moves == "a job of the topic")
    before = [] if gone else [[2, 3, 4, 5]]
    assert [piece for piece in pieces if piece not in [*before, [1, 2, 3, 4]]] == []


async def test_a_job_that_starts_during_a_poll_shares_no_position(
    plain: Site, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent as running together with the jobs that moved up."""
    other = await submit(conn, topic="b")
    jobs = [str(await in_topic(conn)) for _ in range(3)]
    someone = await worker(conn)
    await plain.start()
    hub = plain.api.state.backend.live
    events = plain.api.state.backend.engine.events
    really: Callable[..., Awaitable[Any]] = events.read_jobs
    to_claim: list[int] = []

    async def read_after_a_claim(ids: Any, **options: Any) -> Any:
        while to_claim:
            await claim(conn, someone, limit=to_claim.pop())
        return await really(ids, **options)

    watcher = hub.watch_scope(Scope("a", None))
    known: dict[str, tuple[str, int | None]] = {}
    pieces: list[list[int | None]] = []

    async def watch() -> None:
        while True:
            piece = await watcher.events()
            for line in piece.decode().splitlines():
                if line.startswith("data: "):
                    job = json.loads(line.removeprefix("data: "))
                    known[job["id"]] = job["status"], job["position"]
            if piece:
                pieces.append([known[job][1] for job in jobs])
            await watcher.wait()

    async def has_started() -> bool:
        return pieces[-1:] == [[None, 1, 2]]

    watching = asyncio.create_task(watch())
    try:
        await eventually(lambda: _are(pieces, [2, 3, 4]), "the snapshot")
        monkeypatch.setattr(events, "read_jobs", read_after_a_claim)
        await conn.execute("select penstock.cancel_job($1)", other)
        to_claim.append(1)
        await eventually(has_started, "the first one has started")
    finally:
        watching.cancel()
        watcher.leave()
    waiting = [[one for one in piece if one is not None] for piece in pieces]
    assert [piece for piece in waiting if len(set(piece)) < len(piece)] == []


async def _are(pieces: list[list[int | None]], wanted: list[int]) -> bool:
    return pieces[-1:] == [wanted]


async def test_nothing_is_polled_without_watchers(
    plain: Site, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plain.start()
    polls = 0
    events = plain.api.state.backend.engine.events
    really: Callable[..., Awaitable[Any]] = events.changed_scopes

    async def counted(*args: Any, **named: Any) -> Any:
        nonlocal polls
        polls += 1
        return await really(*args, **named)

    monkeypatch.setattr(events, "changed_scopes", counted)
    await conn.execute("select penstock.notify_change()")
    async with listening(plain.admin, TOPIC) as one:
        await in_topic(conn)
        await one.status("queued")
    assert plain.api.state.backend.live.count() == 0
    before = polls
    for _ in range(3):
        await conn.execute("select penstock.notify_change()")
    await asyncio.sleep(0)
    assert polls == before


# --- faults ---------------------------------------------------------------------------------------


async def test_a_killed_listener_costs_no_event(plain: Site, conn: asyncpg.Connection) -> None:
    """R-F24: the session that listens is killed; polls find the changes, and it listens again."""
    async with listening(plain.admin, TOPIC) as one:
        await eventually(lambda: sessions(conn), "it listens")
        [before] = await sessions(conn)
        await conn.execute("select pg_terminate_backend($1)", before)
        job = await in_topic(conn)
        await one.status("queued", job, seconds=3)

        async def listens_again() -> bool:
            return bool(set(await sessions(conn)) - {before})

        await eventually(listens_again, "another session listens")
        again = await in_topic(conn)
        await one.status("queued", again, seconds=3)


async def test_without_notifications_a_change_is_sent_within_a_second_or_two(
    plain: Site, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-F24: notifications are dropped."""

    async def deaf(*args: Any, **named: Any) -> None:
        await listen(args[0], (), *args[2:], **named)

    monkeypatch.setattr("penstock.http.live.hub.listen", deaf)
    async with listening(plain.admin, TOPIC) as one:
        await eventually(lambda: sessions(conn), "it has a session, and receives nothing")
        job = await in_topic(conn)
        await one.status("queued", job, seconds=3)


async def test_streams_stay_open_over_an_outage_and_catch_up(
    plain: Site, conn: asyncpg.Connection
) -> None:
    """The database ends all sessions again and again; watchers notice nothing."""
    job = await in_topic(conn)
    number = await worker(conn)
    async with (
        listening(plain.admin, TOPIC) as topic,
        listening(plain.admin, f"/v1/jobs/{job}/events") as one,
    ):
        await topic.next()
        await one.next()
        for _ in range(3):
            await conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
        started = await claim(conn, number)
        await topic.status("running", job)
        await finish(conn, number, started)
        await one.status("succeeded", job)
        await topic.status("succeeded", job)
        assert not topic.closed.is_set()


class Slow:
    """A client that reads nothing until it is allowed to."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.gone = asyncio.Event()
        self.blocked = asyncio.Event()
        self.had = b""

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body" and b"event:" in message["body"]:
            self.blocked.set()
            await self.may.wait()
        self.had += message.get("body", b"")

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_a_slow_client_costs_no_memory_and_begins_again(
    plain: Site, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of kept events is limited; a client that lags further is sent `resync`."""
    monkeypatch.setattr("penstock.http.live.feeds.LOG_ENTRIES", 20)
    await in_topic(conn)
    await plain.start()
    slow = Slow()
    scope = httpx.Request("GET", f"http://penstock.test{TOPIC}")
    headers = [
        (b"host", b"penstock.test"),
        (b"authorization", plain.admin.headers["authorization"].encode()),
    ]
    runs = asyncio.create_task(
        plain.api(
            {
                "type": "http",
                "http_version": "1.1",
                "method": "GET",
                "headers": headers,
                "scheme": "http",
                "path": scope.url.path,
                "raw_path": scope.url.raw_path,
                "query_string": b"",
                "server": ("penstock.test", 80),
                "client": ("192.0.2.7", 1),
                "root_path": "",
            },
            slow.receive,
            slow.send,
        )
    )
    async with listening(plain.admin, TOPIC) as quick:
        await quick.next()
        await slow.blocked.wait()
        for _ in range(5):
            jobs = await submit_rows(conn, [{"kind": "q", "topic": "a"}] * 10)
            await quick.all_are("queued", jobs)
        [feed] = plain.api.state.backend.live._scopes.values()
        assert len(feed.log.entries) <= 20
        slow.may.set()

        async def resynced() -> bool:
            return b"event: resync" in slow.had

        await eventually(resynced, "it is sent resync")
        slow.gone.set()
        await asyncio.wait_for(runs, 5)
        assert not quick.closed.is_set()


async def test_a_client_that_reads_nothing_is_disconnected(
    plain: Site, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.http.live.hub.STALLED_SECONDS", 0.1)
    await in_topic(conn)
    await plain.start()
    live = plain.api.state.backend.live
    slow = Slow()
    stream = EventStream(lambda: live.watch_scope(Scope("a", None)))
    await asyncio.wait_for(stream({}, slow.receive, slow.send), 10)
    assert live.count() == 0


# --- chunks ---------------------------------------------------------------------------------------


class Emitter:
    """An attempt that writes chunks into the database, as its worker would."""

    def __init__(self, conn: asyncpg.Connection, number: int, started: Any) -> None:
        self._conn = conn
        self._number = number
        self._start = started
        self.job = started["id"]
        self.seq = 0

    async def emit(self, count: int) -> None:
        seqs = [self.seq + n for n in range(1, count + 1)]
        self.seq += count
        await self._conn.execute(
            "select penstock.append_chunks($1, $2, $3, $4, $5)",
            self._number,
            [self.job] * count,
            [self._start["attempt"]] * count,
            seqs,
            [f"w{n} " for n in seqs],
        )
        await self.report(None)

    async def report(self, done: int | None) -> None:
        """Report progress; None: only a heartbeat."""
        await self._conn.execute(
            "select * from penstock.report_progress($1, $2, $3, array[null], array[null], $4)",
            self._number,
            [self.job],
            [self._start["attempt"]],
            [None if done is None else {"done": done, "total": 9}],
        )


@pytest.fixture
async def emitter(plain: Site, conn: asyncpg.Connection) -> Emitter:  # noqa: ARG001  # has the queue
    await in_topic(conn)
    number = await worker(conn, lease="1 hour")
    [started] = await claim(conn, number)
    return Emitter(conn, number, started)


def chunk_numbers(listener: Listener) -> list[int]:
    return [event.data["seq"] for event in listener.had if event.name == "chunk"]


async def until_chunk(listener: Listener, seq: int) -> str:
    event = await listener.until(
        lambda event: event.name == "chunk" and event.data["seq"] >= seq, f"chunk {seq}"
    )
    assert event.id
    return event.id


async def test_a_client_that_reconnects_gets_each_chunk_once(
    plain: Site, conn: asyncpg.Connection, emitter: Emitter
) -> None:
    """Disconnected at any chunk, it continues after the last one it received."""
    job = emitter._start["id"]
    path = f"/v1/jobs/{job}/events"
    had: list[int] = []
    last: str | None = None
    async with listening(plain.admin, path) as steady:
        for turn in range(6):
            async with listening(plain.admin, path, last=last) as one:
                first = await one.next()
                assert first.name == "job", "the state comes first"
                await emitter.emit(7 + turn)
                await until_chunk(one, emitter.seq - 3)
                await emitter.emit(5)  # some of them while the client is disconnected
                chunks = [event for event in one.had if event.name == "chunk"]
                had += chunk_numbers(one)
                last = chunks[-1].id
        await finish(conn, emitter._number, [emitter._start])
        async with listening(plain.admin, path, last=last) as one:
            await one.over()
            had += chunk_numbers(one)
        await steady.over()
    assert had == list(range(1, emitter.seq + 1))
    assert chunk_numbers(steady) == had, "the client that stayed received the same"


async def test_a_heartbeat_is_not_sent_as_an_event_of_the_job(
    plain: Site, emitter: Emitter
) -> None:
    """Each chunk raises the version of its job, but watchers are sent only the chunk."""
    path = f"/v1/jobs/{emitter.job}/events"
    async with listening(plain.admin, path) as listener, listening(plain.admin, TOPIC) as topic:
        begun = (await listener.next()).data["version"]
        assert (await topic.next()).data["version"] == begun
        for n in range(1, 4):
            await emitter.emit(1)
            assert await until_chunk(listener, n) in {
                f"{begun + n}.1.{n}",
                f"{begun + n - 1}.1.{n}",
            }
        await emitter.report(1)
        for one in (listener, topic):
            event = await one.until(lambda event: event.name == "job", "a visible change is sent")
            assert (event.data["progress"]["done"], event.data["version"]) == (1, begun + 4)
        assert [event.name for event in listener.had] == ["job", *["chunk"] * 3, "job"]
        assert len(topic.had) == 2
    async with listening(plain.admin, path, last=listener.had[-1].id) as again:
        await emitter.emit(1)
        await until_chunk(again, 4)
        snapshot, chunk = again.had
        assert snapshot.data["version"] >= begun + 4
        assert chunk.data["seq"] == 4


def test_a_heartbeat_is_not_sent_as_an_event_of_the_batch() -> None:
    feed = BatchFeed(lambda: None)
    for version, done, updates in ((9, 0, 1), (10, 0, 1), (10, 1, 2), (11, 1, 2), (12, 2, 3)):
        item = {"version": version, "updated_at": f"at {version}", "progress": {"done": done}}
        body = encode("batch", json.dumps({"id": "b", "items": [item]}))
        feed.publish_state(body, jobs=BATCH_ITEMS)
        assert feed.updates == updates, (version, done)
        assert f'"version": {version}'.encode() in feed.body, (
            "a new watcher is sent the newest state"
        )


async def test_a_late_client_reads_all_chunks(plain: Site, emitter: Emitter) -> None:
    """More than a page of chunks, while more are emitted, beside clients that are ahead."""
    path = f"/v1/jobs/{emitter._start['id']}/events"
    async with listening(plain.admin, path) as early:
        await emitter.emit(450)
        await until_chunk(early, 450)
        async with (
            listening(plain.admin, path) as late,
            listening(plain.admin, path, last="1.999.999") as lost,
        ):
            await emitter.emit(30)
            await until_chunk(late, 480)
            await until_chunk(early, 480)
            await emitter.emit(1)
            for one in (early, late):
                await until_chunk(one, 481)
            assert chunk_numbers(lost) == [], "it named a chunk that does not exist yet"
        assert chunk_numbers(late) == chunk_numbers(early) == list(range(1, 482))


async def test_chunks_of_all_attempts_are_sent_in_order(
    plain: Site, conn: asyncpg.Connection, emitter: Emitter
) -> None:
    await emitter.emit(2)
    path = f"/v1/jobs/{emitter._start['id']}/events"
    async with listening(plain.admin, path) as one:
        await until_chunk(one, 2)
        await finish(conn, emitter._number, [emitter._start], "released")
        [started] = await claim(conn, emitter._number)
        again = Emitter(conn, emitter._number, started)
        await again.emit(3)
        await finish(conn, emitter._number, [started])
        events = await one.over()
    numbers = [(e.data["attempt"], e.data["seq"]) for e in events if e.name == "chunk"]
    assert numbers == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
    ids = [tuple(map(int, (e.id or "").split("."))) for e in events]
    assert [one[1:] for one in ids] == sorted(one[1:] for one in ids)


# --- servers --------------------------------------------------------------------------------------


@pytest.fixture
async def servers(
    database: str, conn: asyncpg.Connection, tmp_path: Path
) -> AsyncIterator[list[Served]]:
    """Two servers on one database."""
    await queue(conn)
    with serving(database, tmp_path) as one, serving(database, tmp_path) as other:
        await asyncio.gather(one.start(), other.start())
        yield [one, other]


@pytest.mark.alone
async def test_a_change_by_one_server_is_sent_by_the_other(
    servers: list[Served], conn: asyncpg.Connection
) -> None:
    async with (
        servers[0].client() as here,
        servers[1].client() as there,
        listening(here, TOPIC) as mine,
        listening(there, TOPIC) as theirs,
    ):
        body = {"kind": "q", "payload": {}, "topic": "a"}
        job = (await here.post("/v1/jobs", json=body)).json()["id"]
        for one in (mine, theirs):
            await one.status("queued", job)
        assert (await there.post(f"/v1/jobs/{job}/cancel")).status_code == 200
        for one in (mine, theirs):
            await one.status("cancelled", job)
    assert len(await sessions(conn)) == 2


@pytest.mark.alone
async def test_a_server_with_open_streams_stops_at_once(servers: list[Served]) -> None:
    """Its clients reconnect to the other server and miss nothing."""
    async with (
        servers[0].client() as here,
        servers[1].client() as there,
        listening(here, TOPIC) as one,
    ):
        body = {"kind": "q", "payload": {}, "topic": "a"}
        job = (await there.post("/v1/jobs", json=body)).json()["id"]
        await one.status("queued", job)
        async with asyncio.timeout(5):
            assert await servers[0].stop() == 0
        await one.over(seconds=1)
        async with listening(there, TOPIC) as again:
            await again.status("queued", job)


class Crowd:
    """Clients of one topic that always reconnect, and the finished jobs that each has seen."""

    def __init__(self, client: httpx.AsyncClient, count: int) -> None:
        self._client = client
        self._tasks = {n: asyncio.create_task(self._watch(n)) for n in range(count)}
        self.known: dict[int, set[str]] = {n: set() for n in range(count)}

    def drop(self, n: int) -> None:
        """Disconnect without closing; a new client connects."""
        self._tasks[n].cancel()
        self.known[n] = set()
        self._tasks[n] = asyncio.create_task(self._watch(n))

    async def leave(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _watch(self, n: int) -> None:
        while True:
            self.known[n] = had = set()
            with suppress(httpx.TransportError, AssertionError):
                async with listening(self._client, TOPIC) as one:
                    while True:
                        event = await one.next(seconds=60)
                        if event.data["status"] == "succeeded":
                            had.add(event.data["id"])
            await asyncio.sleep(0.2)


@pytest.mark.alone
@pytest.mark.timeout(120)
async def test_clients_that_disconnect_and_return_get_the_current_state(
    servers: list[Served], conn: asyncpg.Connection, scale: Scale
) -> None:
    """R-F23: half of them disconnect again and again, and the server restarts under the others."""
    count = scale(60, 600)
    server = servers[0]
    number = await worker(conn, lease="1 hour")
    await submit_rows(conn, [{"kind": "q", "topic": "a"}] * 20)
    finished: set[str] = set()

    async def end_one() -> None:
        started = await claim(conn, number)
        await finish(conn, number, started)
        finished.add(str(started[0]["id"]))

    async with server.client() as client:
        crowd = Crowd(client, count)

        async def all_know() -> bool:
            return all(had == finished for had in crowd.known.values())

        for turn in range(4):
            await end_one()
            for n in range(turn % 2, count, 2):
                crowd.drop(n)
            await end_one()
            await eventually(all_know, "all have the present state", seconds=15)
            if turn % 2:
                assert await server.stop() == 0
                await end_one()
                await server.start()
                await eventually(all_know, "after the restart, too", seconds=15)
        await crowd.leave()
