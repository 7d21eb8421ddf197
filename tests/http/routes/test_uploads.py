"""Uploads over HTTP: limited, typed by content, for their owner only, never run by a browser."""

import hashlib
import io
import uuid
import zipfile
from typing import Any

import asyncpg
import httpx
import pytest

from penstock import Job
from support.http.half_sent import HalfSent
from support.http.site import SECRET, Site, problem

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 40
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


async def send(
    client: httpx.AsyncClient, content: bytes, name: str = "a.png", **fields: str
) -> httpx.Response:
    return await client.post("/v1/uploads", files={"file": (name, content)}, data=fields)


def zipped(**entries: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name.replace("__", "/"), content)
    return file.getvalue()


async def test_a_file_is_kept_and_comes_back_as_a_download(site: Site) -> None:
    """E2: with type and size, in pieces."""
    content = PNG + bytes(range(256)) * 4_000
    sent = await send(site.app_client, content, account="u1")
    assert (sent.status_code, set(sent.json())) == (201, {"id", "content_type", "size"})
    assert sent.json() | {"id": ""} == {"id": "", "content_type": "image/png", "size": len(content)}

    client = await site.account_client("u1")
    got = await client.get(f"/v1/uploads/{sent.json()['id']}")
    assert (got.status_code, got.content) == (200, content)
    assert got.headers["content-type"] == "image/png"
    assert got.headers["content-disposition"].startswith("attachment; filename=")
    assert got.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in got.headers["content-security-policy"]
    assert got.headers["etag"] == f'"{hashlib.sha256(content).hexdigest()}"'

    again = await client.get(
        f"/v1/uploads/{sent.json()['id']}", headers={"If-None-Match": got.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    for header, first, last in (
        ("300000-", 300_000, None),
        ("5-9", 5, 9),
        ("262143-262145", 262_143, 262_145),
    ):
        part = await client.get(
            f"/v1/uploads/{sent.json()['id']}", headers={"Range": f"bytes={header}"}
        )
        assert part.status_code == 206
        assert part.content == content[first : None if last is None else last + 1]
    behind = await client.get(
        f"/v1/uploads/{sent.json()['id']}", headers={"Range": f"bytes={len(content)}-"}
    )
    assert behind.status_code == 416


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "image/jpeg"),
        (
            b"GIF89a<script>alert(1)</script>",
            "image/gif",
        ),  # a file that is also HTML stays a picture
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "audio/wav"),
        (b"\0\0\0\x1cftypavif\0\0\0\0", "image/avif"),
        (b"\0\0\0\x1cftypheic\0\0\0\0", "image/heic"),
        (b"\0\0\0\x1cftypisom\0\0\0\0", "video/mp4"),
        (b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01B\xf2\x81\x04webm", "video/webm"),
        (b"%PDF-1.7\n<html>", "application/pdf"),
        (b"ID3\x04\0", "audio/mpeg"),
        (b"OggS\0", "audio/ogg"),
        ("Grüße, an essay.".encode(), "text/plain"),
        (b'{"a": 1}', "application/json"),
        (b"name,mark\nAda,7\nBob,8\n", "text/csv"),
        (b"\xef\xbb\xbfname;mark\nAda;7\nBob;8\n", "text/csv"),
        (zipped(a=b"x"), "application/zip"),
        (
            zipped(**{"[Content_Types].xml": b"<x/>", "word__document.xml": b"<x/>"}),
            "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        ),
        (SVG, "application/octet-stream"),
        (b"  \n<!DOCTYPE html><html>", "application/octet-stream"),
        (b"\xef\xbb\xbf<?xml version='1.0'?><svg/>", "application/octet-stream"),
        (b"MZ\x90\0\x03\0", "application/octet-stream"),
        (b"\xff\xfe\0\0", "application/octet-stream"),
        (b"text with a \x00 in it", "application/octet-stream"),
        (("a" * 4_095 + "é").encode(), "text/plain"),  # cut inside a character
    ],
)
async def test_the_type_comes_from_the_content(site: Site, content: bytes, found: str) -> None:
    """E2, C12: the name and the declared type are not trusted."""
    sent = await site.app_client.post(
        "/v1/uploads", files={"file": ("x.html", content, "text/html")}
    )
    assert sent.json()["content_type"] == found
    got = await site.app_client.get(f"/v1/uploads/{sent.json()['id']}")
    assert got.content == content
    assert got.headers["content-type"].partition(";")[0] == found
    assert got.headers["content-disposition"].startswith("attachment")


async def test_a_file_that_a_job_calls_html_is_not_served_as_html(site: Site) -> None:
    """C12"""
    kept = await site.engine.uploads.create(io.BytesIO(SVG), "image/svg+xml", account=None)
    got = await site.admin.get(f"/v1/uploads/{kept.id}")
    assert got.headers["content-type"] == "application/octet-stream"


async def test_an_archive_bomb_is_not_unpacked_and_a_path_in_a_name_is_ignored(site: Site) -> None:
    """C12: a zip of many megabytes of zeros counts with its compressed size."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0", bytes(30 * 1024 * 1024))
    sent = await send(site.app_client, file.getvalue(), "../../../etc/passwd")
    assert sent.json()["size"] == len(file.getvalue())
    got = await site.app_client.get(f"/v1/uploads/{sent.json()['id']}")
    assert "passwd" not in str(got.headers)


async def test_size_and_quota(site: Site, conn: asyncpg.Connection) -> None:
    """E2: the size of a file is limited, and that of all files of one account."""
    await conn.execute(
        "update penstock.setting set upload_max_bytes = 1000, upload_quota_bytes = 2500"
    )
    refusal = problem(await send(site.app_client, bytes(1_001)), 413, "upload_too_large")
    assert (refusal["most_bytes"], refusal["field"]) == (1000, "file")
    large = await send(site.app_client, bytes(2_000_000))
    problem(large, 413, "upload_too_large")
    client = await site.account_client("u1")
    for _ in range(2):
        assert (await send(client, bytes(1_000))).status_code == 201
    refusal = problem(await send(client, bytes(501)), 413, "upload_quota_exceeded")
    assert (refusal["used_bytes"], refusal["quota_bytes"]) == (2000, 2500)
    assert (await send(client, bytes(500))).status_code == 201
    assert (await send(await site.account_client("u2"), bytes(1_000))).status_code == 201
    kept = await conn.fetch("select id, size from penstock.upload")
    assert len(kept) == 4
    parts = await conn.fetchval("select sum(length(data)) from penstock.upload_part")
    assert parts == sum(row["size"] for row in kept)


async def test_invalid_forms_are_refused(site: Site, conn: asyncpg.Connection) -> None:
    client = site.app_client
    problem(await send(client, b""), 422, "empty_upload")
    problem(await client.post("/v1/uploads", json={"file": "x"}), 415, "unsupported_media_type")
    problem(await client.post("/v1/uploads"), 415, "unsupported_media_type")
    two = [("file", ("a", b"1")), ("file", ("b", b"2"))]
    assert (
        problem(await client.post("/v1/uploads", files=two), 422, "invalid_request")["field"]
        == "file"
    )
    other = {"picture": ("a", b"1")}
    refusal = problem(await client.post("/v1/uploads", files=other), 422, "invalid_request")
    assert refusal["field"] == "picture"
    long = {"file": ("a", b"1")}
    problem(
        await client.post("/v1/uploads", files=long, data={"account": "x" * 2_000}),
        422,
        "invalid_request",
    )

    problem(await send(client, b"1", account="x" * 201), 422, "invalid_upload")
    problem(await send(client, b"1", account="\0"), 422, "invalid_upload")

    async def raw(body: bytes, **headers: str) -> httpx.Response:
        return await client.post(
            "/v1/uploads",
            content=body,
            headers={"Content-Type": "multipart/form-data; boundary=b", **headers},
        )

    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    problem(await raw(head + b"cut off"), 422, "invalid_request")
    problem(await raw(b"no form at all"), 422, "invalid_request")
    problem(await raw(b"--b\r\n" + b"x" * 10_000 + b": y\r\n"), 422, "invalid_request")
    problem(
        await raw(head + b"1\r\n--b--\r\n", **{"Content-Length": str(10**12)}),
        413,
        "upload_too_large",
    )
    account = b'--b\r\nContent-Disposition: form-data; name="account"\r\n\r\nJos\xe9\r\n'
    refusal = problem(await raw(account + head + b"1\r\n--b--\r\n"), 422, "invalid_request")
    assert refusal["field"] == "account", "not UTF-8, so it names no account"
    assert (await raw(head + b"1\r\n--b--\r\n")).status_code == 201
    assert await conn.fetchval("select count(*) from penstock.upload") == 1


async def test_only_the_owner_sees_a_file(site: Site) -> None:
    """E2: another account's id and an unknown one get the same answer."""
    one, two = await site.account_client("u1"), await site.account_client("u2")
    sent = (await send(one, PNG)).json()
    problem(await send(one, PNG, account="u2"), 403, "not_allowed")
    foreign = problem(await two.get(f"/v1/uploads/{sent['id']}"), 404, "unknown_upload")
    absent = str(uuid.uuid4())
    unknown = problem(await two.get(f"/v1/uploads/{absent}"), 404, "unknown_upload")
    assert foreign["detail"].replace(sent["id"], absent) == unknown["detail"]
    problem(await two.delete(f"/v1/uploads/{sent['id']}"), 404, "unknown_upload")
    problem(await site.anonymous.get(f"/v1/uploads/{sent['id']}"), 401, "unauthorized")
    process = site.client(await site.make_key("process"))
    problem(await process.get(f"/v1/uploads/{sent['id']}"), 403, "not_allowed")
    nobodys = (await send(site.app_client, PNG)).json()
    problem(await one.get(f"/v1/uploads/{nobodys['id']}"), 404, "unknown_upload")
    assert (await site.admin.get(f"/v1/uploads/{sent['id']}")).status_code == 200
    assert (await one.delete(f"/v1/uploads/{sent['id']}")).status_code == 204
    problem(await one.get(f"/v1/uploads/{sent['id']}"), 404, "unknown_upload")


async def test_a_job_reads_and_makes_files(site: Site) -> None:
    """E2: `job.open` and `job.attach`, and the result's file is the owner's."""
    app = site.penstock
    queue = app.queue("pictures")

    @app.job(queue=queue, account="owner")
    async def invert(owner: str, picture: dict[str, Any], job: Job) -> dict[str, Any]:
        file = await job.open(picture)
        content = await file.read()
        assert job.account == owner
        made = await job.attach(content[::-1], "image/x-inverted")
        return {"was": [file.content_type, file.size], "picture": made}

    client = await site.account_client("u1")
    sent = (await send(client, PNG)).json()
    ticket = await invert.submit(owner="u1", picture={"upload": sent["id"]})
    await site.work()
    result = await ticket.result(timeout=5)
    assert result["was"] == ["image/png", len(PNG)]
    got = await client.get(f"/v1/uploads/{result['picture']['upload']}")
    assert got.content == PNG[::-1]
    assert got.headers["content-type"] == "application/octet-stream"


async def test_a_payload_may_refer_to_files_of_its_account_only(
    site: Site, conn: asyncpg.Connection
) -> None:
    """E2: checked at submit, over HTTP and in Python; the refusal names the path."""
    app = site.penstock
    queue = app.queue("pictures")

    @app.job(queue=queue)
    async def count(pictures: list[dict[str, Any]]) -> int:
        return len(pictures)

    one, two = await site.account_client("u1"), await site.account_client("u2")
    sent = (await send(one, PNG)).json()["id"]

    async def submit(client: httpx.AsyncClient, *ids: Any, **more: Any) -> httpx.Response:
        payload = {"pictures": [{"upload": one} for one in ids]}
        return await client.post("/v1/jobs", json={"kind": "count", "payload": payload, **more})

    refusal = problem(await submit(two, sent), 422, "unknown_upload")
    assert refusal["field"] == "payload.pictures.0"
    refusal = problem(await submit(one, sent, "nonsense"), 422, "unknown_upload")
    assert refusal["field"] == "payload.pictures.1"
    problem(await submit(one, sent, str(uuid.uuid4())), 422, "unknown_upload")
    problem(await submit(site.app_client, sent), 422, "unknown_upload")  # without an account
    assert await conn.fetchval("select count(*) from penstock.job") == 0
    assert (await submit(one, sent)).status_code == 201
    assert (await submit(site.app_client, sent, account="u1")).status_code == 201
    batch = [
        {"kind": "count", "payload": {"pictures": []}},
        {"kind": "count", "payload": {"pictures": [{"upload": sent}]}},
    ]
    refused = await two.post("/v1/jobs/batch", json={"jobs": batch})
    assert problem(refused, 422, "unknown_upload")["field"] == "jobs.1.payload.pictures.0"
    assert (await one.post("/v1/jobs/batch", json={"jobs": batch})).status_code == 201


@pytest.mark.parametrize("path", ["/v1/uploads", "/v1/callbacks", "/v1/jobs"])
async def test_a_client_that_stops_sending_is_disconnected(
    site: Site, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """C12, C18: nobody occupies a connection by sending nothing."""
    monkeypatch.setattr("penstock.http.routing.PROGRESS_SECONDS", 0.05)
    parts = [b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx']
    headers = {"content-type": "multipart/form-data; boundary=b"}
    call = HalfSent(site, path, parts, key=SECRET, headers=headers)
    await call.run()
    assert call.status == 408


async def test_a_token_of_the_account_gives_access_to_its_files(site: Site) -> None:
    """E2: in a browser; a token of a job or a topic does not."""
    client = await site.account_client("u1")
    sent = (await send(client, PNG)).json()["id"]

    async def token(**what: str) -> str:
        made = await client.post("/v1/tokens", json={**what, "ttl_seconds": 60})
        assert made.status_code == 201, made.text
        return str(made.json()["token"])

    of_account, of_topic = await token(account="u1"), await token(topic="t")
    got = await site.anonymous.get(f"/v1/uploads/{sent}?token={of_account}")
    assert got.content == PNG
    problem(await site.anonymous.get(f"/v1/uploads/{sent}?token={of_topic}"), 403, "not_allowed")
    other = site.client(of_account)
    problem(await send(other, PNG), 403, "not_allowed")
    problem(await other.delete(f"/v1/uploads/{sent}"), 403, "not_allowed")
