"""The table of jobs: statuses in words, filters, search, pages, totals."""

import httpx
import pytest

from browser.scene import Scene
from support.dashboard.visitor import Visitor, text
from support.http.site import Site

ODD = '<script>alert("1")</script>'


async def test_an_empty_system_says_what_to_do_next(operator: Visitor) -> None:
    page_text = await operator.read("/jobs")
    assert "No jobs yet. Submit one: penstock submit" in page_text


async def test_the_old_address_redirects_here(operator: Visitor) -> None:
    answer = await operator.get("/ai-queue", follow=True)
    assert answer.url.path == "/jobs"
    assert "<h1>Jobs</h1>" in answer.text


async def test_jobs_are_shown_newest_first(operator: Visitor, scene: Scene) -> None:
    """M15"""
    ids = [await scene.queued() for _ in range(3)]
    page = (await operator.get("/jobs")).text
    # Sorted by id, because two jobs may have the same millisecond.
    positions = [page.index(f'<tr id="job-{one}">') for one in sorted(ids, reverse=True)]
    assert positions == sorted(positions)
    assert "3 jobs" in page


async def test_each_status_is_shown_in_words(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line", timeout_seconds=600)
    page_text = {
        await scene.running(stage="TIER1", label="Tier 1 scanning"): "Running Tier 1 scanning",
        await scene.awaiting(): "Awaiting callback the outside function has not called back yet",
        await scene.succeeded(): "Succeeded",
        await scene.failed(): "Failed the handler raised an error: ValueError: the page has no",
        await scene.retrying(): "Scheduled next attempt in",
        await scene.scheduled(): "Scheduled starts in 60 min",
        await scene.cancelled(): "Cancelled cancelled while it waited",
    }
    rows = rows_of(await operator.get("/jobs"))
    for job, words in page_text.items():
        assert words in rows[str(job)], rows[str(job)]


async def test_a_queued_job_shows_why_it_does_not_run(operator: Visitor, scene: Scene) -> None:
    job = await scene.queued()
    assert "no worker serves its queue" in rows_of(await operator.get("/jobs"))[str(job)]
    await scene.worker()
    assert "Queued" in rows_of(await operator.get("/jobs"))[str(job)]
    await scene.conn.execute("select penstock.pause_queue('line')")
    assert "its queue is paused" in rows_of(await operator.get("/jobs"))[str(job)]


async def test_a_full_queue_and_a_full_account_have_different_reasons(
    operator: Visitor, scene: Scene
) -> None:
    await scene.plan(concurrency=1)
    await scene.queue("line", concurrency=2)
    await scene.running(account="u1")
    own = await scene.queued(account="u1")
    rows = rows_of(await operator.get("/jobs"))
    assert "its account runs as many jobs as its plan allows" in rows[str(own)]
    await scene.running(account="u2")
    other = await scene.queued(account="u3")
    rows = rows_of(await operator.get("/jobs"))
    assert "jobs ahead of it take all slots of its queue" in rows[str(other)]


@pytest.mark.parametrize(
    ("query", "hits"),
    [
        ("status=failed", {"failed"}),
        ("status=queued", {"mine", "other"}),
        ("kind=other", {"other"}),
        ("queue=other", {"other"}),
        ("account=u1", {"mine"}),
        ("topic=a1", {"mine", "failed"}),
        ("status=failed&topic=a1&kind=line", {"failed"}),
        ("status=succeeded", set()),
        ("status=&kind=&queue=&account=&topic=&batch=", {"mine", "other", "failed"}),
    ],
)
async def test_every_filter_shows_the_matching_jobs_only(
    operator: Visitor, scene: Scene, query: str, hits: set[str]
) -> None:
    ids = {
        "failed": await scene.failed(topic="a1"),
        "mine": await scene.queued(account="u1", topic="a1"),
        "other": await scene.queued("other"),
    }
    answer = await operator.get(f"/jobs?{query}")
    assert set(rows_of(answer)) == {str(ids[name]) for name in hits}
    if not hits:
        assert "There are no succeeded jobs. Show all jobs" in text(answer)


async def test_a_filter_by_batch_shows_the_jobs_of_that_batch(
    operator: Visitor, scene: Scene, site: Site
) -> None:
    await scene.queue()
    answer = await site.admin.post(
        "/v1/jobs/batch", json={"jobs": [{"kind": "line", "payload": {}}] * 2}
    )
    await scene.queued()
    batch = answer.json()["batch"]
    assert len(rows_of(await operator.get(f"/jobs?batch={batch}"))) == 2


async def test_an_invalid_filter_is_reported(operator: Visitor, scene: Scene) -> None:
    await scene.queued()
    assert "There is no status broken" in await operator.read("/jobs?status=broken")
    assert "There is no batch “xyz”: that is not an id." in await operator.read("/jobs?batch=xyz")
    assert "There is no job kind nope" in await operator.read("/jobs?kind=nope")
    assert "There is no queue nope" in await operator.read("/jobs?queue=nope")
    page = await operator.get("/jobs?status=broken")
    assert 'hx-trigger="refresh"' not in page.text, "a refresh would lose the message"


async def test_the_filter_offers_existing_kinds_and_queues(operator: Visitor, scene: Scene) -> None:
    await scene.queue("b-line")
    await scene.queue("a-line")
    page = (await operator.get("/jobs?kind=b-line")).text
    assert "<option>a-line</option>" in page
    assert "<option selected>b-line</option>" in page


async def test_html_in_names_is_escaped(operator: Visitor, scene: Scene) -> None:
    job = await scene.failed(account=ODD, topic=f"a/ü 'x' {ODD}", message=ODD * 20)
    answer = await operator.get("/jobs")
    assert "<script>alert" not in answer.text
    row = rows_of(answer)[str(job)]
    assert ODD in row
    assert row.rstrip("0123456789 ms").endswith("just now"), row
    filtered = await operator.get("/jobs?account=%3Cscript%3Ealert(%221%22)%3C%2Fscript%3E")
    assert set(rows_of(filtered)) == {str(job)}
    assert "<script>alert" not in filtered.text


async def test_the_search_for_an_id_redirects_to_its_job(operator: Visitor, scene: Scene) -> None:
    job = str(await scene.queued())
    for pasted in (job, f" {job} ", job.replace("-", ""), job[:8] + " " + job[8:], job.upper()):
        answer = await operator.get(f"/jobs?q={pasted}")
        assert answer.headers["location"] == f"./jobs/{job}", pasted


async def test_the_search_for_a_batch_id_redirects_to_the_batch(
    operator: Visitor, scene: Scene, site: Site
) -> None:
    await scene.queue()
    answer = await site.admin.post(
        "/v1/jobs/batch", json={"jobs": [{"kind": "line", "payload": {}}]}
    )
    batch = answer.json()["batch"]
    found = await operator.get(f"/jobs?q={batch}")
    assert found.headers["location"] == f"./batches/{batch}"


async def test_the_search_for_an_unknown_id_says_so(operator: Visitor) -> None:
    page_text = await operator.read("/jobs?q=0199f0a4-6c1e-7d3a-9b52-2f6d8a7c1e05")
    assert "No job and no batch has the id 0199f0a4-6c1e-7d3a-9b52-2f6d8a7c1e05" in page_text


async def test_the_search_for_a_name_offers_account_and_topic(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queued(account="u1", topic="same")
    await scene.queued(account="same")
    page = (await operator.get("/jobs?q=same")).text
    assert 'href="./jobs?account=same">Jobs of account same' in page
    assert 'href="./jobs?topic=same">Jobs of topic same' in page
    assert "Jobs of topic" not in (await operator.get("/jobs?q=u1")).text
    page_text = await operator.read("/jobs?q=nobody")
    assert "Nothing found for “nobody”" in page_text


async def test_the_search_for_the_end_of_an_id_redirects_to_its_job(
    operator: Visitor, scene: Scene
) -> None:
    live, finished = str(await scene.queued()), str(await scene.failed())
    for job in (live, finished):
        assert f">{job[-8:]}</a>" in (await operator.get("/jobs")).text
        for end in (job[-8:], job[-8:].upper(), job[-12:], job[-6:]):
            answer = await operator.get(f"/jobs?q={end}")
            assert answer.headers["location"] == f"./jobs/{job}", end
    page_text = await operator.read(f"/jobs?q={live[-5:]}")
    assert "no job's id ends with it" in page_text
    unknown = f"{int(live[-8:], 16) ^ 1:08x}"
    assert "no job's id ends with it" in await operator.read(f"/jobs?q={unknown}")


async def test_an_end_of_an_id_that_is_also_a_topic_offers_both(
    operator: Visitor, scene: Scene
) -> None:
    job = str(await scene.queued())
    await scene.queued(topic=job[-8:])
    page = (await operator.get(f"/jobs?q={job[-8:]}")).text
    assert f'href="./jobs/{job}">line {job}, queued' in page
    assert f"Jobs of topic {job[-8:]}" in page


async def test_older_jobs_are_on_the_next_page_and_only_the_first_page_refreshes(
    operator: Visitor, scene: Scene
) -> None:
    ids = [str(one) for one in await scene.many(120)]
    seen: list[str] = []
    address: str | None = "/jobs?kind=line"
    pages = 0
    while address:
        answer = await operator.get(address)
        seen += rows_of(answer)
        assert ('hx-trigger="refresh"' in answer.text) == (pages == 0)
        pages += 1
        address = next_of(answer)
    assert seen == sorted(ids, reverse=True)
    assert pages == 3
    assert "120 jobs" in await operator.read("/jobs")


async def test_while_jobs_are_selected_newer_ones_are_not_shown(
    operator: Visitor, scene: Scene
) -> None:
    ids = [await scene.queued() for _ in range(3)]
    answer = await operator.get(f"/jobs?from={ids[1]}")
    assert list(rows_of(answer)) == [str(ids[1]), str(ids[0])]
    assert "Newer jobs are not shown while jobs are selected" in text(answer)
    assert 'hx-get="./jobs?from' not in answer.text


async def test_a_cursor_of_another_list_is_refused(operator: Visitor) -> None:
    answer = await operator.get("/jobs?cursor=nonsense")
    assert answer.status_code == 422
    assert "ursor is not of this list" in text(answer)


async def test_totals_are_exact_if_that_is_cheap_and_say_otherwise_that_they_are_not(
    operator: Visitor, scene: Scene
) -> None:
    await scene.many(60)
    assert "60 jobs" in await operator.read("/jobs")
    await scene.conn.execute(
        "create or replace function penstock._page_scan_limit() returns integer"
        " language sql immutable"
        " as 'select 55'"
    )
    assert "At least 55 jobs" in await operator.read("/jobs?status=queued")
    await scene.queued(account="rare")
    page_text = await operator.read("/jobs?kind=line&status=scheduled")
    assert "0 jobs among the newest 100,000" in page_text
    assert "No match among the 100,000 newest jobs that were searched" in page_text
    assert "Search older jobs" in page_text


async def test_many_jobs_are_estimated(
    operator: Visitor, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.dashboard.pages.jobs.MOST_COUNTED", 1_000)
    monkeypatch.setattr("penstock.dashboard.pages.jobs._ESTIMATED_FROM", 1_100)
    await scene.many(1_234)
    assert "More than 1,000 jobs" in await operator.read("/jobs")
    await scene.conn.execute("analyze penstock.job")
    assert "About 1,230 jobs (an estimate" in await operator.read("/jobs")
    assert "More than 1,000 jobs" in await operator.read("/jobs?kind=line")


def rows_of(answer: httpx.Response) -> dict[str, str]:
    """Return the text of each row by job id, in the order of the table."""
    assert answer.status_code == 200, answer.text[:500]
    found = {}
    for part in answer.text.split('<tr id="job-')[1:]:
        job, _, row = part.partition('"')
        found[job] = text(httpx.Response(200, text="<tr" + row.split("</tr>")[0]))
    return found


def next_of(answer: httpx.Response) -> str | None:
    before, link, _ = answer.text.partition('" rel="next"')
    return before.rpartition('href=".')[2].replace("&amp;", "&") if link else None
