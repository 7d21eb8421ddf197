"""Payloads that break parsers, databases and memory: at the API, by SQL, and in the table itself.

R-F17: refused with a code. A row that got in anyway fails alone after one attempt; other jobs
run, and the server's memory does not grow.
"""

import asyncio
import gzip
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock.http.routing import LARGEST_BYTES, USUAL_BYTES
from support import factory
from support.http.serving import serving
from support.http.site import SECRET, Site
from support.worker.crew import until_finished, working

JOB = b'{"kind": "%s", "payload": {"value": %s}}'
MEGABYTE = 1024 * 1024

# Values in a payload, as bytes on the wire.
VALUES: dict[str, bytes] = {
    "NUL": rb'"a\u0000b"',
    "half a surrogate pair": rb'"\ud800"',
    "halves in the wrong order": rb'"\udc00\ud800"',
    "invalid UTF-8": b'"\xff\xfe"',
    "overlong UTF-8": b'"\xc0\xaf"',
    "5,000 deep": b"[" * 5_000 + b"]" * 5_000,
    "100,000 deep and open": b"[" * 100_000,
    "objects 5,000 deep": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "an endless number": b"1e131000",
    "many endless numbers": b"[" + b"1e131000," * 100_000 + b"1]",
    "an integer of 5,000 digits": b"9" * 5_000,
    "NaN": b"NaN",
    "Infinity": b"Infinity",
    "-Infinity": b"-Infinity",
    "1e400": b"1e400",
    "100,000 keys": b"{" + b",".join(b'"k%d":1' % n for n in range(100_000)) + b"}",
    "2 MB of text": b'"' + b"x" * 2 * MEGABYTE + b'"',
}

# Over HTTP it is zero, as in most JSON parsers; Postgres would keep all its digits.
BY_SQL = {**VALUES, "endless behind the point": b"[" + b"1e-16000," * 1_000 + b"1]"}

BODIES: dict[str, bytes] = {
    "nothing": b"",
    "half of it": b'{"kind": "anything", "payload": {',
    "not an object": b"[]",
    "null": b"null",
    "NUL bytes": b"\0" * 100,
    "a gzip bomb": gzip.compress(b"\0" * 10 * MEGABYTE),
    "UTF-16": '{"kind": "anything", "payload": {}}'.encode("utf-16"),
    "a million keys": b"{" + b",".join(b'"k%d":1' % n for n in range(1_000_000)) + b"}",
    "too large": b" " * (USUAL_BYTES + 1),
    "nothing but brackets": b"[" + b"[]," * (USUAL_BYTES // 4) + b"[]]",
}

# Texts of a job that appear in addresses, headers or streams.
FIELDS: dict[str, dict[str, Any]] = {
    "CRLF in webhook_url": {"webhook_url": "https://example.com/\r\nX-Evil: 1"},
    "CRLF in the host of webhook_url": {"webhook_url": "https://example.com\r\n.evil.test/"},
    "a scheme of its own": {"webhook_url": "javascript:alert(1)"},
    "NUL in topic": {"topic": "a\0b"},
    "NUL in account": {"account": "a\0b"},
    "NUL in dedupe_key": {"dedupe_key": "\0"},
    "NUL in kind": {"kind": "any\0thing"},
    "NUL in metadata": {"metadata": {"a": "\0"}},
    "NUL in a key of metadata": {"metadata": {"\0": 1}},
    "an endless delay": {"delay_seconds": 1e308},
    "a moment beyond all": {"run_at": "9999-12-31T23:59:59Z"},
    "a field of its own": {"__proto__": {"price": 0}},
}


def declare(site: Site) -> None:
    app = site.penstock
    app.plan("free", default=True)

    @app.job(queue=app.queue("line"))
    async def anything(value: Any = None) -> Any:
        return value

    @app.job(queue="line")
    async def text(value: str) -> int:
        return len(value)


@pytest.fixture
async def poisoned(site: Site) -> Site:
    """With a kind that accepts anything, one with types, and one that only the database knows."""
    declare(site)
    await site.penstock.engine()
    await site.engine.queues.declare("elsewhere", by="elsewhere")
    await site.engine.queues.declare_kind("foreign", "elsewhere", by="elsewhere")
    return site


async def send(site: Site, path: str, body: bytes, **headers: str) -> dict[str, Any]:
    """Send a body, check that the refusal has the usual form, and return it."""
    answer = await site.app_client.post(
        path, content=body, headers={"Content-Type": "application/json", **headers}
    )
    assert 400 <= answer.status_code < 500, f"{answer.status_code}: {answer.text[:500]}"
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.content) < 50_000, "a refusal is no echo"
    refusal: dict[str, Any] = answer.json()
    assert refusal["code"]
    assert refusal["detail"]
    return refusal


@pytest.mark.parametrize("name", VALUES)
async def test_a_poisoned_value_is_refused(poisoned: Site, name: str) -> None:
    """For kinds with types, of this process, and of the database alone; also in a batch."""
    for kind in (b"anything", b"text", b"foreign"):
        job = JOB % (kind, VALUES[name])
        await send(poisoned, "/v1/jobs", job)
        good = JOB % (kind, b'"good"')
        await send(poisoned, "/v1/jobs/batch", b'{"jobs": [%s, %s]}' % (good, job))
        more = b'{"kind": "%s", "payload": {"value": "x"}, "metadata": {"m": %s}}'
        await send(poisoned, "/v1/jobs", more % (kind, VALUES[name]))
    assert (await poisoned.admin.get("/v1/jobs")).json()["items"] == []


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/batch", "/v1/tokens", "/v1/accounts"])
async def test_a_poisoned_body_is_refused(poisoned: Site, path: str, name: str) -> None:
    headers = {"Content-Encoding": "gzip"} if "gzip" in name else {}
    await send(poisoned, path, BODIES[name], **headers)


@pytest.mark.parametrize("name", FIELDS)
async def test_a_poisoned_field_is_refused(poisoned: Site, name: str) -> None:
    job = {"kind": "anything", "payload": {}, **FIELDS[name]}
    await send(poisoned, "/v1/jobs", json.dumps(job).encode())
    await send(poisoned, "/v1/jobs/batch", json.dumps({"jobs": [job]}).encode())


async def test_a_line_break_in_a_text_stays_in_that_text(poisoned: Site) -> None:
    """Topics and keys may have any character; none becomes a header or an event."""
    odd = "a\r\nX-Evil: 1\r\n\r\nevent: evil"
    job = {"kind": "anything", "payload": {"value": odd}, "topic": odd, "account": odd}
    answer = await poisoned.app_client.post("/v1/jobs", json={**job, "dedupe_key": odd})
    assert answer.status_code == 201, answer.text
    assert answer.json()["topic"] == odd
    assert "evil" not in str(answer.headers).lower()
    async with poisoned.app_client.stream("GET", f"/v1/jobs/{answer.json()['id']}/events") as live:
        first = await anext(live.aiter_text())
    assert "\nevent: evil" not in first.replace("\r", "\n")


@pytest.mark.parametrize("key", ["", "k" * 256, "\x00", "a\x00b"])
async def test_an_invalid_idempotency_key_is_refused(poisoned: Site, key: str) -> None:
    refusal = await send(
        poisoned, "/v1/jobs", JOB % (b"anything", b"1"), **{"Idempotency-Key": key}
    )
    assert refusal["field"] == "idempotency_key"


async def test_of_duplicate_json_keys_the_last_counts_everywhere(poisoned: Site) -> None:
    """The same value is checked, stored and run."""
    body = b'{"kind": "text", "kind": "anything", "payload": {"value": 1, "value": {"a":1,"a":2}}}'
    answer = await poisoned.app_client.post("/v1/jobs", content=body)
    assert answer.json()["kind"] == "anything"
    await poisoned.work()
    read = (await poisoned.app_client.get(f"/v1/jobs/{answer.json()['id']}")).json()
    assert read["result"] == {"a": 2}


async def test_names_with_a_meaning_elsewhere_are_plain_names(poisoned: Site) -> None:
    odd = {"__proto__": {"admin": True}, "constructor": 1, "__class__": "x", "$ref": "#/", "a.b": 1}
    answer = await poisoned.app_client.post(
        "/v1/jobs", json={"kind": "anything", "payload": {"value": odd}, "metadata": odd}
    )
    await poisoned.work()
    read = (await poisoned.app_client.get(f"/v1/jobs/{answer.json()['id']}")).json()
    assert (read["status"], read["result"], read["metadata"]) == ("succeeded", odd, odd)


@pytest.mark.parametrize("name", [name for name in BY_SQL if "UTF-8" not in name])
@pytest.mark.parametrize("key", [None, "k1"])
async def test_a_poisoned_value_is_refused_by_sql_too(
    conn: asyncpg.Connection, name: str, key: str | None
) -> None:
    """With a code of ours, or by Postgres itself if it is not jsonb."""
    await factory.queue(conn, "foreign")
    value = BY_SQL[name].decode()
    with pytest.raises(asyncpg.PostgresError) as refused:
        await conn.execute(
            "select penstock.submit_job('foreign', cast(cast($1 as text) as jsonb),"
            " idempotency_key => $2)",
            f'{{"value": {value}}}',
            key,
        )
    # 22: an invalid value; 54: more than Postgres can store.
    state = refused.value.sqlstate or ""
    assert state in ("PS422", "PS413") or state.startswith(("22", "54")), refused.value
    assert await conn.fetchval("select count(*) from penstock.job") == 0


# As written by someone with the right to write into the table.
ROWS: dict[str, str] = {
    "5,000 deep": "('{\"value\": ' || repeat('[', 5000) || repeat(']', 5000) || '}')::jsonb",
    "an endless number": "'{\"value\": 1e131000}'::jsonb",
    "a hundred endless numbers": "('{\"value\": [' || repeat('1e131000,', 99) || '1]}')::jsonb",
    "many endless numbers": "('{\"value\": [' || repeat('1e131000,', 99999) || '1]}')::jsonb",
    "endless behind the point": "('{\"value\": [' || repeat('1e-16000,', 9999) || '1]}')::jsonb",
    "an integer of 4,400 digits": "('{\"value\": ' || repeat('9', 4400) || '}')::jsonb",
    "an array": "'[1]'::jsonb",
    "a text": "'\"x\"'::jsonb",
    "null": "'null'::jsonb",
    "100,000 keys": "(select jsonb_object_agg('k' || g, g) from generate_series(1, 100000) g)",
}


@pytest.mark.parametrize("name", ROWS)
async def test_a_row_that_got_in_anyway_fails_alone_after_one_attempt(
    poisoned: Site, conn: asyncpg.Connection, name: str
) -> None:
    """The worker survives, and its other claimed jobs run."""
    before = [await factory.submit(conn, "anything") for _ in range(3)]
    bad = await insert(conn, ROWS[name])
    after = [await factory.submit(conn, "anything") for _ in range(3)]
    async with working(poisoned.dsn, poisoned.penstock):
        finished = await until_finished(conn, [*before, *after, *([bad] if bad else [])])
        late = await factory.submit(conn, "anything")
        [last] = await until_finished(conn, [late])
    assert last["status"] == "succeeded"
    for row in finished:
        expected = "failed" if row["id"] == bad else "succeeded"
        assert (row["status"], row["attempt"]) == (expected, 1), name
    if bad is not None:
        read = await poisoned.admin.get(f"/v1/jobs/{bad}")
        assert read.json()["error"]["class"] == "invalid_request"


async def insert(conn: asyncpg.Connection, payload: str) -> UUID | None:
    """Insert a copy of a row with another payload; None: the table refuses it."""
    columns = [
        row["attname"]
        for row in await conn.fetch(
            "select attname from pg_attribute where attrelid = 'penstock.job'::regclass"
            " and attnum > 0 and not attisdropped and attgenerated = ''"
        )
    ]
    own = {"id": "penstock.new_id(penstock.clock())", "payload": payload}
    values = ", ".join(own.get(name, name) for name in columns)
    try:
        found: UUID = await conn.fetchval(
            f"insert into penstock.job ({', '.join(columns)})"
            f" select {values} from penstock.job limit 1 returning id"
        )
    except asyncpg.PostgresError as error:
        if error.sqlstate != "PS422":
            raise
        return None
    return found


def floods() -> dict[str, tuple[str, bytes, Iterator[bytes]]]:
    """Hand-written requests: the path, the declared length, and the body."""
    piece = b" " * MEGABYTE
    brackets = b'{"jobs": [{"kind": "k", "payload": {"a": [' + b"[]," * (20 * MEGABYTE)
    keys = b",".join(b'"k%d":1' % n for n in range(1_000_000))
    return {
        "100 MB in chunks": ("/v1/jobs", b"Transfer-Encoding: chunked", _chunks([piece] * 100)),
        "100 MB in chunks for a batch": (
            "/v1/jobs/batch",
            b"Transfer-Encoding: chunked",
            _chunks([piece] * 100),
        ),
        "100 MB": ("/v1/jobs", b"Content-Length: %d" % (100 * MEGABYTE), iter([piece] * 100)),
        "says 5 and sends 100 MB": ("/v1/jobs", b"Content-Length: 5", iter([piece] * 100)),
        "says 1 GB and sends 1 MB": ("/v1/jobs", b"Content-Length: %d" % 2**30, iter([piece])),
        "says less than nothing": ("/v1/jobs", b"Content-Length: -1", iter([piece])),
        "60 MB of brackets": (
            "/v1/jobs/batch",
            b"Content-Length: %d" % len(brackets),
            iter([brackets]),
        ),
        "a million keys for a batch": (
            "/v1/jobs/batch",
            b"Transfer-Encoding: chunked",
            _chunks([b'{"jobs": [{"kind": "k", "payload": {', keys, b"}}]}"]),
        ),
        "a gzip bomb": (
            "/v1/jobs/batch",
            b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked",
            _chunks([gzip.compress(b"[" * 50 * MEGABYTE)]),
        ),
    }


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.timeout(180)
async def test_floods_do_not_exhaust_the_servers_memory(database: str, tmp_path: Path) -> None:
    """A real process: each is refused or cut off, and takes less memory than twice the limit."""
    with serving(database, tmp_path) as server:
        await server.start()
        async with server.client() as client:
            await client.get("/v1/jobs")  # warm-up
            before = _peak_bytes(server.pid)
            for name, (path, length, pieces) in floods().items():
                status = await asyncio.to_thread(_flood, server.port, path, length, pieces)
                assert status is None or 400 <= status < 500, f"{name}: {status}"
                assert (await client.get("/healthz")).status_code == 200, name
                grown = _peak_bytes(server.pid) - before
                assert grown < 2 * LARGEST_BYTES, f"{name}: {grown / MEGABYTE:.0f} MB"


def _flood(port: int, path: str, length: bytes, pieces: Iterator[bytes]) -> int | None:
    """The status; None: the server disconnected in the middle."""
    head = (
        b"POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"
        b"Content-Type: application/json\r\nConnection: close\r\n%s\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        with suppress(OSError):  # the server stopped reading; its answer may be there
            sock.sendall(head % (path.encode(), SECRET.encode(), length))
            for piece in pieces:
                sock.sendall(piece)
            sock.shutdown(socket.SHUT_WR)
        try:
            answer = sock.recv(65_536)
        except OSError:
            return None
    return int(answer.split()[1]) if answer else None


def _chunks(pieces: list[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise LookupError(pid)
