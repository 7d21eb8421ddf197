"""The overview: figures, charts, reasons for waiting, alerts; concurrent reads share a query."""

import asyncio
import re
from datetime import timedelta

import asyncpg
import pytest

from browser.scene import Scene
from penstock.dashboard.components.queue_state import Count, rounded
from penstock.engine.queries.lists import Hourly
from penstock.errors import Unavailable
from support import factory
from support.dashboard.visitor import Visitor, text
from support.http.site import Site
from support.waiting import eventually

# Shown instead of an average without data.
NONE = "\N{EN DASH}"
BUG = {"class": "bug", "message": "ValueError: no text", "retryable": False}


async def figures(operator: Visitor) -> dict[str, str]:
    """Return the figures by their label."""
    page = (await operator.get("/")).text
    found = re.findall(
        r'<li class="figure[^>]*>\s*<b>(.*?)</b>\s*<span>(.*?)</span>', page, re.DOTALL
    )
    return {label: " ".join(re.sub(r"<[^>]*>", " ", value).split()) for value, label in found}


async def row(operator: Visitor, queue: str) -> str:
    """Return the text of a queue's row."""
    page = await operator.get("/")
    found = re.search(rf'<tr id="queue-{re.escape(queue)}">(.*?)</tr>', page.text, re.DOTALL)
    assert found, f"{queue} is not in the table"
    return " ".join(re.sub(r"<[^>]*>", " ", found[1]).split())


async def test_an_empty_system_says_what_to_do_first(operator: Visitor) -> None:
    page = await operator.read("/")
    assert "No jobs yet" in page
    assert "Declare a kind of job" in page
    assert "Start a worker, which runs jobs: penstock worker" in page
    assert "penstock submit KIND" in page
    assert "failed today" not in page
    assert "<svg" not in (await operator.get("/")).text


async def test_with_a_queue_the_first_submit_names_its_kind(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("essays")
    page = await operator.read("/")
    assert "penstock submit essays --data '{…}' --wait" in page
    assert "Declare a kind of job" not in page


async def test_figures_count_live_and_failed_jobs(operator: Visitor, scene: Scene) -> None:
    """M15: one success took 4 s and one 8 s; failed jobs are not in the average."""
    await scene.clock.freeze()
    await scene.many(3)
    await scene.scheduled()
    await scene.running("other")
    await scene.awaiting("handed")
    for seconds, outcome in ((4, "succeeded"), (8, "succeeded"), (60, "failed")):
        started = await scene.started("other")
        await scene.clock.advance(seconds)
        await scene.end(started, outcome, error=None if outcome == "succeeded" else BUG)
    found = await figures(operator)
    assert found["queued"] == "3"
    assert found["scheduled for later"] == "1"
    assert found["running"] == "1"
    assert found["awaiting a callback"] == "1"
    assert found["failed today (UTC)"] == "1"
    assert found["average duration, 24 h"] == "6 s"
    # Both are in the class from 3 to 10 s; p95 is at 95 % of that range.
    assert found["p95 duration, 24 h"] == "9.7 s"


async def test_figures_without_data_are_a_dash(operator: Visitor, scene: Scene) -> None:
    await scene.many(1)
    found = await figures(operator)
    assert found["average duration, 24 h"] == NONE
    assert found["p95 duration, 24 h"] == NONE
    assert found["average wait, last 1,000 jobs"] == NONE


async def test_an_estimated_count_is_marked(
    operator: Visitor, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.many(400)

    async def little(self: Hourly, hours: int = 24) -> object:
        return await self._value(dict, "select penstock.read_overview($1, 100)", hours)

    monkeypatch.setattr(Hourly, "overview", little)
    assert (await figures(operator))["queued, estimated"] == "400"
    assert "about 400" in await row(operator, "line")


@pytest.mark.parametrize(
    ("jobs", "shown"),
    [(0, 0), (99, 99), (101, 100), (26_412, 26_000), (998_700, 1_000_000), (1_249, 1_200)],
)
def test_an_estimate_is_rounded_to_two_digits(jobs: int, shown: int) -> None:
    assert rounded(jobs) == shown
    assert str(Count(jobs, about=True)) == f"about {shown:,}"


async def test_outcomes_and_failures_are_shown_as_charts_and_tables(
    operator: Visitor, scene: Scene
) -> None:
    await scene.succeeded()
    await scene.failed(cls="timeout")
    await scene.retrying(cls="bad_output")
    page = await operator.get("/")
    assert page.text.count("<svg") == 2
    assert 'aria-label="Finished jobs: 2 jobs.' in page.text
    assert 'aria-label="Failed attempts by class: 2 failed attempts.' in page.text
    assert "timeout: exceeded its timeout 1" in text(page)
    assert "bad_output: the answer of the model is not usable 1" in text(page)
    assert page.text.count("(so far)") == 2
    assert "style=" not in page.text


async def test_seven_error_classes_are_shown_as_five_and_others(
    operator: Visitor, scene: Scene
) -> None:
    for cls in ("timeout", "stalled", "bug", "bad_output", "refused", "auth", "quota"):
        await scene.failed(cls=cls)
    page = await operator.read("/")
    assert "other classes 2" in page


async def test_without_failures_the_chart_says_so(operator: Visitor, scene: Scene) -> None:
    await scene.succeeded()
    assert "No attempts failed in this time." in await operator.read("/")


@pytest.mark.parametrize(
    ("query", "page_text", "bars"),
    [
        ("", "The last 24 hours", 25),
        ("?hours=168", "The last 7 days", 29),
        ("?hours=720", "The last 30 days", 31),
        ("?hours=1e9", "The last 24 hours", 25),
        ("?hours=%00", "The last 24 hours", 25),
    ],
)
async def test_the_range_is_chosen_by_a_link(
    operator: Visitor, scene: Scene, query: str, page_text: str, bars: int
) -> None:
    await scene.succeeded()
    page = await operator.get(f"/{query}")
    assert page_text in text(page)
    assert page.text.count('<g id="ended-') == bars


async def test_a_full_queue_says_that_its_slots_are_taken(operator: Visitor, scene: Scene) -> None:
    await scene.queue(concurrency=1)
    await scene.running()
    await scene.many(2)
    page_text = await row(operator, "line")
    assert "2 1 of 1" in page_text
    assert "Its only slot is taken; the next job starts when it is free." in page_text
    assert "The oldest has been due for" in page_text


async def test_a_job_that_awaits_its_callback_takes_a_slot(operator: Visitor, scene: Scene) -> None:
    """The page showed "0 of 1" beside "Its only slot is taken"."""
    await scene.queue(concurrency=1)
    await scene.awaiting()
    await scene.queued()
    page_text = await row(operator, "line")
    assert "1 1 of 1 1 awaiting" in page_text
    assert "Its only slot is taken" in page_text
    assert 'href="./jobs?queue=line&amp;status=awaiting">1</a>' in (await operator.get("/")).text


async def test_a_used_up_rate_limit_is_shown(operator: Visitor, scene: Scene) -> None:
    await scene.queue(rate="1/h")
    await scene.running()
    await scene.many(2)
    assert "Its rate limit of 1/h is used up for the moment" in await row(operator, "line")


async def test_full_accounts_are_shown(operator: Visitor, scene: Scene) -> None:
    await scene.plan(concurrency=1)
    await scene.running(account="a")
    await scene.queued(account="a")
    assert "as many as their plans allow" in await row(operator, "line")


async def test_a_paused_queue_shows_the_reason_and_how_to_resume(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    await scene.worker()
    await scene.many(2)
    await conn.execute("select penstock.pause_queue('line', 'moving <b>house</b>')")
    page_text = await row(operator, "line")
    assert "Paused" in page_text
    assert "It is paused (moving &lt;b&gt;house&lt;/b&gt;)." in page_text
    assert "penstock resume line" in page_text
    assert "Needs attention" not in await operator.read("/")
    await scene.clock.advance("3h")
    page = await operator.read("/")
    assert "Queue line has been paused for 3 h, and 2 jobs wait." in page


async def test_an_outage_is_shown_with_what_happens_next(operator: Visitor, scene: Scene) -> None:
    await scene.outage("model")
    page = await operator.read("/")
    assert "The provider of queue model is not available" in page
    assert "jobs wait and continue automatically" in page
    page_text = await row(operator, "model")
    assert "Provider unavailable" in page_text
    assert "The provider does not answer" in page_text


async def test_a_wrong_key_is_shown_with_what_to_do(operator: Visitor, scene: Scene) -> None:
    await scene.outage("model", cls="auth")
    assert "Held: action needed" in await row(operator, "model")
    page = await operator.read("/")
    assert "correct it, restart the workers, then penstock resume model" in page


async def test_queues_of_one_unavailable_provider_have_one_alert(
    operator: Visitor, scene: Scene
) -> None:
    """Four queues that call one model were four alerts with the same words."""
    for name in ("essays", "marks", "notes", "words"):
        await scene.outage(name)
    await scene.outage("own", cls="auth")
    page = (await operator.get("/")).text
    alerts = re.findall(r'<li class="alert bad" id="alert-([^"]*)"', page)
    assert alerts == ["provider-unavailable-127.0.0.1:11434", "queue-own"]
    page_text = text(await operator.get("/"))
    assert (
        "The provider at 127.0.0.1:11434 is unavailable (unavailable), and queues essays, marks,"
        " notes, words need it. Their jobs wait and start automatically when it answers again."
        in page_text
    )


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        ("auth", "refuses the key that queues a, b use. Correct the key, restart the workers"),
        ("quota", "The quota or credit of queues a, b at 127.0.0.1:11434 is used up. Raise it"),
        ("config", "does not know the model of queues a, b, or refuses a setting. Correct"),
    ],
)
async def test_queues_that_one_provider_holds_have_one_alert_with_the_remedy(
    operator: Visitor, scene: Scene, cls: str, words: str
) -> None:
    await scene.outage("a", cls=cls)
    await scene.outage("b", cls=cls)
    page_text = await operator.read("/")
    assert words in page_text
    assert page_text.count("penstock resume") == 1


async def test_a_queue_without_a_worker_is_not_ready(operator: Visitor, scene: Scene) -> None:
    await scene.queue("rests")
    await scene.queued("waits")
    assert "No worker is alive" in await operator.read("/")
    assert (await row(operator, "rests")).startswith("rests No worker")
    assert (await row(operator, "waits")).startswith("waits No worker")
    assert "2 queues, 1 in trouble" in await operator.read("/queues")
    await factory.worker(scene.conn, kinds=["rests"], lease="1 day")
    assert (await row(operator, "rests")).startswith("rests Ready")
    assert (await row(operator, "waits")).startswith("waits No handler")


async def test_jobs_without_any_worker_are_the_first_alert(operator: Visitor, scene: Scene) -> None:
    await scene.queued()
    page = await operator.read("/")
    assert "No worker is alive, and 1 job waits." in page
    assert "No workers. Start one: penstock worker" in page
    await scene.scheduled("later", seconds=5)
    await scene.clock.advance("1m")
    assert "No worker is alive, and 2 jobs wait." in await operator.read("/")


async def test_jobs_of_a_kind_without_a_handler_are_named(operator: Visitor, scene: Scene) -> None:
    await scene.queued()
    await factory.worker(scene.conn, kinds=["another"], lease="1 day")
    page = await operator.read("/")
    assert "1 job waits in queue line, and no worker has a handler for kind" in page
    assert "No worker has a handler for the kinds of its waiting jobs" in await row(
        operator, "line"
    )


async def test_jobs_that_wait_without_a_reason_are_reported(
    operator: Visitor, scene: Scene
) -> None:
    await scene.worker()
    await scene.queued()
    assert "Needs attention" not in await operator.read("/")
    await scene.clock.advance("10m")
    assert "the workers are busy with other queues" in await row(operator, "line")
    page = await operator.read("/")
    assert "1 job waits in queue line for 10 min, although nothing stops them." in page


async def test_a_silent_worker_is_reported_with_what_happens_to_its_jobs(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    await scene.started(worker="left-hand")
    await conn.execute("update penstock.worker set beat_at = penstock.clock() - lease - lease")
    page = await operator.read("/")
    assert "Worker left-hand sends no heartbeat." in page
    assert "Other workers will start its 1 job again." in page
    assert "Silent" in page


async def test_stuck_jobs_are_linked(operator: Visitor, scene: Scene) -> None:
    await scene.stale()
    page = await operator.get("/")
    assert "1 running job reports no progress." in text(page)
    assert 'href="./stuck"' in page.text


async def test_missing_partitions_for_history_are_reported(operator: Visitor, scene: Scene) -> None:
    await scene.succeeded()
    await scene.clock.advance("12d")
    assert "The partitions for finished jobs exist only for the next" in await operator.read("/")


async def test_of_forty_queues_those_that_need_attention_come_first_and_the_rest_is_collapsed(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    for number in range(40):
        await scene.queue(f"q{number}")
    await scene.running("q17")
    await scene.queued("q33")
    await conn.execute("select penstock.pause_queue('q33')")
    page = await operator.get("/")
    order = re.findall(r'<tr id="queue-(q[0-9]+)">', page.text)
    assert order[:4] == ["q33", "q17", "q0", "q1"]
    assert len(order) == 40
    shown, collapsed = page.text.split('<details id="more-queues">')
    assert re.findall(r'<tr id="queue-(q[0-9]+)">', shown) == ["q33", "q17"]
    assert "38 more, without waiting or running jobs" in text(page)
    assert collapsed.index("queue-q2") < collapsed.index("queue-q10")


async def test_forty_queues_with_waiting_jobs_are_not_forty_rows(
    operator: Visitor, scene: Scene
) -> None:
    for number in range(40):
        await scene.queued(f"q{number}")
    page = await operator.get("/")
    shown, _ = page.text.split('<details id="more-queues">')
    assert len(re.findall(r'<tr id="queue-', shown)) == 12


async def test_html_in_a_worker_name_is_escaped(operator: Visitor, scene: Scene) -> None:
    await scene.worker("<script>alert(1)</script>")
    page = await operator.get("/")
    assert "<script>alert" not in page.text
    assert "&lt;script&gt;alert(1)" in page.text


async def test_ten_concurrent_requests_make_two_queries(
    operator: Visitor, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first query starts at once; the requests that come meanwhile share a second one."""
    await scene.queued()
    asked = 0
    whole = Hourly.overview
    go_on = asyncio.Event()

    async def slowly(self: Hourly, hours: int = 24) -> dict[str, object]:
        nonlocal asked
        asked += 1
        await go_on.wait()
        return await whole(self, hours)

    await operator.get("/")
    monkeypatch.setattr(Hourly, "overview", slowly)
    first = asyncio.create_task(operator.get("/"))

    async def first_asks() -> bool:
        return asked == 1

    await eventually(first_asks, "the first query")
    rest = [asyncio.create_task(operator.get("/")) for _ in range(9)]
    overviews = operator.site.api.state.overviews

    async def rest_wait() -> bool:
        return len(overviews.reads._waiting) == 9

    await eventually(rest_wait, "nine requests wait for the next query")
    # The others see a change that was made after the first query started.
    await scene.queued()
    go_on.set()
    pages = [text(page) for page in await asyncio.gather(first, *rest)]
    assert asked == 2
    assert all("2 jobs wait." in page for page in pages[1:])


async def test_an_outage_of_the_database_is_a_page(
    operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object) -> None:
        raise Unavailable("the database cannot be reached")

    monkeypatch.setattr(Hourly, "overview", unavailable)
    assert (await operator.get("/")).status_code == 503


async def test_the_page_starts_a_roll_up_that_is_behind(
    operator: Visitor, scene: Scene, site: Site
) -> None:
    """Without a worker nothing else rolls up."""
    await scene.succeeded()
    await scene.clock.advance(timedelta(minutes=30))
    page = await operator.read("/")
    assert "the rest is being counted now" in page

    async def is_rolled_up() -> bool:
        return not (await site.engine.hourly.overview())["ended"]["behind"]

    await eventually(is_rolled_up, "everything is rolled up")
    page = await operator.read("/")
    assert "being counted" not in page
    assert "Succeeded 1" in page


async def test_a_visitor_sees_nothing(visitor: Visitor, scene: Scene) -> None:
    await scene.queued("secret-queue")
    answer = await visitor.get("/")
    assert answer.status_code == 303
    assert "secret-queue" not in answer.text
