"""Metrics: all numbers in the text format, without names of persons."""

import re

import asyncpg

from penstock.http.middleware.requests import Counts
from penstock.http.routes.prometheus import render
from support import factory
from support.http.site import Site, problem

_SAMPLE = re.compile(
    r"(?P<name>[a-z_]+)(?:\{(?P<labels>(?:[a-z]+=\"(?:[^\"\\\n]|\\.)*\",?)*)\})?"
    r" (?P<value>[0-9.e+-]+)"
)


async def scrape(site: Site) -> dict[str, float]:
    answer = await site.admin.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return read(answer.text)


def read(text: str) -> dict[str, float]:
    """Parse the lines by name and labels; a malformed line fails."""
    found: dict[str, float] = {}
    families: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            assert line.split()[3] in ("gauge", "counter", "histogram")
            assert line.split()[2] not in families, "a family comes once"
            families.add(line.split()[2])
        elif not line.startswith("# HELP "):
            sample = _SAMPLE.fullmatch(line)
            assert sample, line
            family = re.sub("_(bucket|sum|count)$", "", sample["name"])
            assert {family, sample["name"]} & families, line
            name = sample["name"] + (f"{{{sample['labels']}}}" if sample["labels"] else "")
            assert name not in found, line
            found[name] = float(sample["value"])
    return found


async def test_queues_workers_outcomes_and_requests_are_counted(
    site: Site, conn: asyncpg.Connection
) -> None:
    queue = site.penstock.queue("model", concurrency=2)

    @site.penstock.job(queue=queue)
    async def mark(n: int) -> int:
        return n

    await mark.using(account="jane@example.org").submit_many([{"n": n} for n in range(3)])
    await site.work()
    await mark.submit(n=4)
    await mark.using(delay="1h").submit(n=5)
    await site.clock.advance("30s")
    await conn.execute("select penstock.pause_queue('model')")
    worker = await factory.worker(conn)
    blocked = "select penstock.report_blocked_loop($1, $2, $3, $4, p_kind => 'mark')"
    await conn.execute(blocked, worker, 1, 2.5, True)
    await conn.execute(blocked, worker, 2, 4, False)
    found = await scrape(site)
    assert found['penstock_queue_jobs{queue="model",status="queued"}'] == 1
    assert found['penstock_queue_jobs{queue="model",status="scheduled"}'] == 1
    assert found['penstock_queue_jobs{queue="model",status="running"}'] == 0
    assert 25 < found['penstock_queue_oldest_seconds{queue="model"}'] < 90
    assert found['penstock_queue_paused{queue="model"}'] == 1
    assert found['penstock_queue_circuit{queue="model",state="closed"}'] == 1
    assert found['penstock_queue_circuit{queue="model",state="open"}'] == 0
    assert found["penstock_workers"] == 1
    assert found["penstock_workers_blocked"] == 1
    assert found['penstock_loop_blocked_total{kind="mark"}'] == 1
    assert found['penstock_loop_blocked_seconds_total{kind="mark"}'] == 2.5
    finished = 'queue="model",kind="mark",outcome="succeeded"'
    assert found[f"penstock_jobs_finished_total{{{finished}}}"] == 3
    assert found[f'penstock_job_duration_seconds_bucket{{{finished},le="+Inf"}}'] == 3
    assert found[f'penstock_job_duration_seconds_bucket{{{finished},le="1800"}}'] == 3
    assert found[f"penstock_job_duration_seconds_count{{{finished}}}"] == 3
    again = await scrape(site)
    this = 'method="GET",route="/metrics"'
    assert again[f'penstock_http_requests_total{{{this},status="200"}}'] == 1
    assert again[f"penstock_http_request_duration_seconds_count{{{this}}}"] == 1
    assert again[f'penstock_http_request_duration_seconds_bucket{{{this},le="+Inf"}}'] == 1
    assert again["penstock_open_streams"] == 0
    assert not [name for name in again if "jane" in name]


async def test_failures_are_counted_by_class(site: Site, conn: asyncpg.Connection) -> None:
    await factory.queue(conn, delay_seconds=0)
    worker = await factory.worker(conn)
    await factory.submit(conn)
    for outcome in ("retry", "failed"):
        error = {"class": "timeout", "message": "m"}
        await factory.finish(conn, worker, await factory.claim(conn, worker), outcome, error=error)
    await site.clock.advance("30s")
    found = await scrape(site)
    assert found['penstock_failures_total{queue="q",kind="q",class="timeout"}'] == 2
    given_back = 'penstock_starts_given_back_total{queue="q",kind="q",outcome="retried"}'
    assert found[given_back] == 1


async def test_unknown_paths_share_one_label(site: Site) -> None:
    for n in range(5):
        await site.anonymous.get(f"/nothing/{n}")
        await site.anonymous.request("BREW", "/v1/jobs")
    found = await scrape(site)
    routes = {name for name in found if name.startswith("penstock_http_requests_total")}
    assert 'penstock_http_requests_total{method="GET",route="unknown",status="404"}' in routes
    assert not [name for name in routes if "nothing" in name or "BREW" in name]


def test_labels_are_escaped() -> None:
    finished = {
        "queue": 'a"b\\c\nd',
        "kind": "k",
        "outcome": "failed",
        "class": "bug",
        "count": 1,
        "total_ms": 1500,
        "histogram": [0, 1],
    }
    gauges = {"queues": [], "unhandled": [], "workers": 0, "stuck": 0, "bounds": [100]}
    gauges |= {"ended": [finished], "blocked": {"now": 0, "kinds": []}}
    found = read(render(gauges, Counts(), 0, []))
    name = 'penstock_failures_total{queue="a\\"b\\\\c\\nd",kind="k",class="bug"}'
    assert found[name] == 1
    total = 'penstock_job_duration_seconds_sum{queue="a\\"b\\\\c\\nd",kind="k",outcome="failed"}'
    assert found[total] == 1.5


async def test_a_scrape_needs_a_key(site: Site) -> None:
    problem(await site.anonymous.get("/metrics"), 401, "unauthorized")
    assert (await site.app_client.get("/metrics")).status_code == 200
    own = await site.account_client("u1")
    problem(await own.get("/metrics"), 403, "not_allowed")
