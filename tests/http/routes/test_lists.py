"""Lists of jobs over HTTP: filters, pages, and the cost of a long history."""

import json
from typing import Any

import asyncpg
import httpx
import pytest

from support.http import kinds
from support.http.site import Site, problem


@pytest.fixture(autouse=True)
def _kinds(site: Site) -> None:
    kinds.declare(site)


async def pages(client: httpx.AsyncClient, **params: Any) -> list[list[str]]:
    """The ids on each page, up to the last."""
    found = []
    while True:
        answer = await client.get("/v1/jobs", params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found.append([one["id"] for one in page["items"]])
        if page["next_cursor"] is None:
            return found
        params["cursor"] = page["next_cursor"]
        assert len(found) < 1_000


async def ids(client: httpx.AsyncClient, **params: Any) -> list[str]:
    return [one for page in await pages(client, **params) for one in page]


async def make(site: Site, kind: str = "mark", **options: Any) -> str:
    # Jobs of the same millisecond are listed in any order.
    await site.clock.advance(0.001, beats=True)
    options.setdefault("payload", {"answer": "a"})
    answer = await site.app_client.post("/v1/jobs", json={"kind": kind, **options})
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


@pytest.mark.parametrize(
    "path",
    ["/v1/jobs", "/v1/keys", "/v1/accounts", "/v1/accounts/u1/ledger", "/v1/webhooks"],
)
async def test_an_unknown_parameter_is_refused_by_name(site: Site, path: str) -> None:
    """If it were ignored, `stat=failed` would list everything, and seem right."""
    await site.make_account("u1")
    refusal = problem(await site.admin.get(f"{path}?limit=5&stat=nix"), 422, "invalid_request")
    assert refusal["field"] == "stat"
    assert "limit" in refusal["detail"]
    assert "cursor" in refusal["detail"]
    assert (await site.admin.get(f"{path}?limit=5")).status_code == 200
    nobody = await site.anonymous.get(f"{path}?stat=nix")
    problem(nobody, 401, "unauthorized")


async def test_a_token_is_a_known_parameter_where_tokens_are_accepted(site: Site) -> None:
    made = await site.app_client.post("/v1/tokens", json={"topic": "a1", "allow": ["read"]})
    token = made.json()["token"]
    listed = await site.anonymous.get(f"/v1/jobs?limit=5&token={token}")
    assert listed.status_code == 200, listed.text
    refusal = problem(
        await site.anonymous.get(f"/v1/jobs?stat=nix&token={token}"), 422, "invalid_request"
    )
    assert (refusal["field"], token in refusal["detail"]) == ("stat", False)
    both = await site.admin.get(f"/v1/keys?token={token}")
    assert problem(both, 422, "invalid_request")["field"] == "token"


async def test_live_and_finished_jobs_are_one_list_newest_first(site: Site) -> None:
    first = await make(site)
    failed = await make(site, "refuse", payload={"why": "no"})
    await site.work()
    later = await make(site, delay_seconds=600)
    last = await make(site)
    # A full page may be the last; then the next one is empty.
    assert await pages(site.app_client, limit=2) == [[last, later], [failed, first], []]
    assert await ids(site.app_client) == [last, later, failed, first]
    assert await ids(site.app_client, status="scheduled") == [later]
    assert await ids(site.app_client, status="failed") == [failed]
    assert await ids(site.app_client, status="succeeded") == [first]
    assert await ids(site.app_client, status="running") == []
    [page] = [(await site.app_client.get("/v1/jobs", params={"status": "failed"})).json()]
    job = page["items"][0]
    assert job["error"]["message"] == "no"
    assert "attempts" not in job
    assert job["position"] is None


async def test_each_filter_and_all_together(site: Site) -> None:
    await kinds.declare_foreign(site)
    one = await make(site, account="u1", topic="t")
    two = await make(site, account="u1")
    three = await make(site, account="u2", topic="t")
    four = await make(site, "foreign")
    for params, wanted in (
        ({"account": "u1"}, [two, one]),
        ({"topic": "t"}, [three, one]),
        ({"kind": "foreign"}, [four]),
        ({"queue": "line"}, [three, two, one]),
        ({"queue": "elsewhere", "kind": "foreign", "status": "queued"}, [four]),
        ({"account": "u1", "topic": "t", "kind": "mark", "queue": "line"}, [one]),
        ({"account": "nobody"}, []),
        ({"topic": "none"}, []),
    ):
        assert await ids(site.app_client, **params) == wanted, params


async def test_an_account_sees_only_its_own_jobs_with_any_filter(site: Site) -> None:
    """G14: also in lists."""
    await make(site, account="u2", topic="t")
    own = await make(site, account="u1", topic="t")
    mine = await site.account_client("u1")
    assert await ids(mine) == [own]
    assert await ids(mine, topic="t") == [own]
    assert await ids(mine, account="u1") == [own]
    assert await ids(mine, account="u2") == []
    token = (await mine.post("/v1/tokens", json={"topic": "t"})).json()["token"]
    assert await ids(site.client(token)) == [own]
    assert await ids(site.client(token), topic="other") == []
    one = (await mine.post("/v1/tokens", json={"job": own})).json()["token"]
    problem(await site.client(one).get("/v1/jobs"), 403, "not_allowed")


@pytest.mark.parametrize(
    ("params", "status", "code", "field"),
    [
        ({"cursor": "nonsense!"}, 422, "invalid_cursor", "cursor"),
        ({"cursor": "AAAA"}, 422, "invalid_cursor", "cursor"),
        ({"cursor": ""}, 422, "invalid_cursor", "cursor"),
        ({"limit": "0"}, 422, "invalid_request", "limit"),
        ({"limit": "1001"}, 422, "invalid_request", "limit"),
        ({"limit": "x"}, 422, "invalid_request", "limit"),
        ({"status": "done"}, 422, "invalid_request", "status"),
        ({"batch": "x"}, 422, "invalid_request", "batch"),
        ({"kind": "no"}, 404, "unknown_kind", "kind"),
        ({"queue": "no"}, 404, "unknown_queue", "queue"),
        ({"topic": "a\0"}, 422, "invalid_filter", "topic"),
    ],
)
async def test_a_wrong_filter_is_refused_by_name(
    site: Site, params: dict[str, str], status: int, code: str, field: str
) -> None:
    refusal = problem(await site.app_client.get("/v1/jobs", params=params), status, code)
    assert refusal["field"] == field


async def test_a_page_ends_before_it_becomes_too_large(site: Site) -> None:
    """Results may be large: a thousand of them do not fit on a page."""
    line = site.penstock.queues["line"]

    @site.penstock.job(queue=line)
    async def write(n: int) -> str:
        return str(n % 10) * 900_000

    made = [await make(site, "write", payload={"n": n}) for n in range(12)]
    await site.work()
    found = await pages(site.app_client, limit=1000)
    assert [one for page in found for one in page] == made[::-1]
    assert len(found) == 2


async def test_rare_jobs_in_a_long_history_are_found_page_by_page(
    site: Site, conn: asyncpg.Connection
) -> None:
    """A page reads a limited number of rows, and the next one continues from there."""
    await kinds.declare_foreign(site)
    rare = await make(site, "foreign", account="u1", topic="t")
    await fill(conn, 3_000)
    await scan_1000_rows_per_page(conn)
    for params in ({"kind": "foreign"}, {"queue": "elsewhere"}, {"kind": "foreign", "limit": 1}):
        found = await pages(site.app_client, **params)
        assert [one for page in found for one in page] == [rare]
        assert len(found) > 1, params
    # These have their own index.
    for params in ({"account": "u1"}, {"topic": "t"}, {"status": "queued"}):
        found = await pages(site.app_client, **params)
        assert [rare] in found


async def test_no_filter_reads_more_of_history_than_a_page_may(
    site: Site, conn: asyncpg.Connection
) -> None:
    """Each filter and their pairs, at 20,000 finished jobs: index scans in order, no sort."""
    await kinds.declare_foreign(site)
    await make(site, account="u1", topic="t")
    await fill(conn, 20_000)
    await conn.execute("analyze penstock.finished")
    await scan_1000_rows_per_page(conn)
    for params in (
        {},
        {"status": "failed"},
        {"status": "succeeded"},
        {"account": "u1"},
        {"account": "u1", "status": "succeeded"},
        {"account": "u1", "status": "failed"},
        {"topic": "t"},
        {"kind": "foreign"},
        {"queue": "elsewhere", "status": "succeeded"},
    ):
        await blocks(conn, **params)  # fills the session's cache of the catalogue
        read = await blocks(conn, **params)
        assert read < 1_200, f"{params} read {read} blocks"


async def scan_1000_rows_per_page(conn: asyncpg.Connection) -> None:
    await conn.execute(
        "create or replace function penstock._page_scan_limit() returns integer"
        " language sql immutable"
        " parallel safe as 'select 1000'"
    )


async def blocks(conn: asyncpg.Connection, **params: str) -> int:
    """How many database pages one page of the list reads."""
    names = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(params, 1))
    explained = await conn.fetchval(
        f"explain (analyze, buffers, format json) select * from penstock.page_jobs({names})",
        *params.values(),
    )
    plan = (json.loads(explained) if isinstance(explained, str) else explained)[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def fill(conn: asyncpg.Connection, many: int) -> None:
    """Insert this many finished jobs of kind mark and account u1; none failed."""
    await conn.execute(
        "insert into penstock.finished (id, class, status, account_id, queue_id, kind_id, priority,"
        " attempt, failures, deferrals, crashes, max_attempts, version, created_at, run_at,"
        " started_at, finished_at, finished_by_attempt, topic, payload, worker_id)"
        " select penstock.new_id(penstock.clock()), (select min(id) from penstock.retention_class),"
        " 'succeeded', coalesce((select id from"
        " penstock.account where name = 'u1'), 0), k.queue_id, k.id, 0, 1, 0, 0, 0, 3, 1,"
        " penstock.clock(), penstock.clock(), penstock.clock(), penstock.clock(), true, 't', '{}',"
        " null from generate_series(1, $1) n, penstock.kind k where k.name = 'mark'",
        many,
    )
