"""The queues, all and one: what the pages say in each situation, and what their buttons do."""

import html as entities
import re

import asyncpg
import pytest

from browser.scene import Scene
from support.clock import Clock
from support.dashboard.visitor import Visitor, text


async def row(operator: Visitor, queue: str, path: str = "/queues") -> str:
    """What the list says of one queue."""
    page = (await operator.get(path)).text
    begun = page.index(f'id="queue-{queue}"')
    found = page[begun : page.index("</tr>", begun)]
    return text_of(found)


def text_of(html: str) -> str:
    return " ".join(entities.unescape(re.sub(r"<[^>]*>", " ", f"<{html}")).split())


async def overrides(conn: asyncpg.Connection, queue: str = "line") -> dict[str, object]:
    found: dict[str, object] = await conn.fetchval(
        "select overrides from penstock.queue where name = $1", queue
    )
    return found


async def test_without_queues_the_page_says_where_they_come_from(operator: Visitor) -> None:
    page = await operator.read("/queues")
    assert "No queue yet." in page
    assert "penstock.toml" in page


async def test_a_queue_is_told_with_what_waits_and_what_runs_of_how_many(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("line", concurrency=4, rate="500/min", order="strict")
    await scene.running()
    await scene.many(3)
    await scene.scheduled()
    told = await row(operator, "line")
    assert "3 + 1 scheduled" in told
    assert "1 of 4" in told
    assert "500/min" in told
    assert "strict" in told
    assert "1 queue, none in trouble." in await operator.read("/queues")


async def test_queues_in_trouble_come_first_with_what_is_the_matter(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("a-fine-one")
    await scene.outage("model")
    await scene.outage("vision", cls="auth")
    await scene.queue("zz")
    await scene.queued("zz")
    await scene.conn.execute("select penstock.pause_queue('zz', 'the <b>disk</b> is full')")
    page = await operator.get("/queues")
    order = [page.text.index(f'id="queue-{name}"') for name in ("model", "vision", "zz")]
    assert max(order) < page.text.index('id="queue-a-fine-one"')
    assert "3 in trouble" in text(page)
    assert "Provider away" in await row(operator, "model")
    assert "next try" in await row(operator, "model")
    assert "needs you" in await row(operator, "vision")
    paused = await row(operator, "zz")
    assert "Paused" in paused
    assert "the <b>disk</b> is full" in paused
    assert "<b>disk" not in page.text
    assert "Paused just now" in paused or "s ago" in paused


async def test_many_queues_can_be_filtered_by_name_and_by_trouble(
    operator: Visitor, scene: Scene
) -> None:
    for n in range(41):
        await scene.queue(f"q{n}")
    await scene.conn.execute("select penstock.pause_queue('q17')")
    assert "41 queues, 1 in trouble." in await operator.read("/queues")
    page = await operator.get("/queues?q=Q3")
    assert page.text.count('id="queue-') == 11
    assert 'id="queue-q39"' in page.text
    page = await operator.get("/queues?only=trouble")
    assert page.text.count('id="queue-') == 1
    assert 'id="queue-q17"' in page.text
    assert "No queue fits." in await operator.read("/queues?q=%3Cscript%3E")


async def test_an_edited_queue_is_marked_in_the_list(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line", concurrency=4)
    assert "edited" not in await row(operator, "line")
    await scene.conn.execute("select penstock.edit_queue('line', $1)", {"concurrency": 10})
    assert "edited Jobs at once 10" in await row(operator, "line")


async def test_a_queue_that_is_not_there_is_said_to_be_missing(operator: Visitor) -> None:
    answer = await operator.get("/queues/nowhere")
    assert answer.status_code == 404
    assert "There is no queue nowhere" in text(answer)


async def test_one_queue_shows_its_kinds_its_jobs_and_its_hours(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("line", concurrency=2)
    await scene.succeeded()
    await scene.failed(cls="bad_output")
    await scene.queued()
    page = await operator.get("/queues/line")
    said = text(page)
    assert "../jobs?queue=line&amp;status=failed" in page.text
    assert "../jobs?kind=line" in page.text
    assert "the oldest for" in said
    assert "1 \N{MULTIPLICATION SIGN} the answer of the model is not usable" in said
    assert "Worked by workers" in said
    hours = said[said.index("The last 24 hours") :]
    assert "Succeeded Failed Cancelled Tried again Average" in hours
    assert " 1 1 0 0 " in hours


async def test_a_queue_where_nothing_has_ended_says_so(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line")
    assert "Nothing has ended here." in await operator.read("/queues/line")


async def test_a_limit_is_edited_live_and_shown_beside_what_is_declared(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("line", concurrency=4)
    answer = await operator.post(
        "/queues/line/edit", {"concurrency": "10", "timeout_seconds": "5 min"}
    )
    assert "Jobs at once is 10 now; Time-out is 5 min now." in text(answer)
    assert await overrides(scene.conn) == {"concurrency": 10, "timeout_seconds": 300}
    page = await operator.read("/queues/line")
    assert "declared 4, now 10 (edited)" in page
    assert "Time-out : not declared, now 5 min (edited)" in page


async def test_what_code_declares_anew_stands_beside_the_edit(
    operator: Visitor, scene: Scene
) -> None:
    """The app restarts with another limit: what an operator has set still counts."""
    await scene.queue("line", concurrency=4)
    await operator.post("/queues/line/edit", {"concurrency": "10"})
    await scene.queue("line", concurrency=6)
    assert "declared 6, now 10 (edited)" in await operator.read("/queues/line")
    await operator.post("/queues/line/reset", {"confirm": "yes"})
    page = await operator.read("/queues/line")
    assert "(edited)" not in page
    in_force = await scene.conn.fetchval("select concurrency from penstock.queue")
    assert in_force == 6


async def test_an_empty_field_goes_back_to_what_is_declared(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("line", concurrency=4)
    await operator.post("/queues/line/edit", {"concurrency": "10", "attempts": "7"})
    answer = await operator.post(
        "/queues/line/edit", {"was_concurrency": "10", "was_attempts": "7", "attempts": "7"}
    )
    assert "Jobs at once is as declared again." in text(answer)
    assert await overrides(scene.conn) == {"attempts": 7}


async def test_a_second_tab_takes_nothing_back_that_it_does_not_know_of(
    operator: Visitor, scene: Scene
) -> None:
    """Its page was made before the other one set a limit: its empty field says nothing."""
    await scene.queue("line", concurrency=4)
    await operator.post("/queues/line/edit", {"concurrency": "10"})
    await operator.post("/queues/line/edit", {"rate": "20/s"})
    assert await overrides(scene.conn) == {"concurrency": 10, "rate": "20/s"}


async def test_a_form_that_changes_nothing_says_so(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line")
    answer = await operator.post("/queues/line/edit")
    assert "Nothing was changed." in text(answer)


async def test_no_limit_counts_although_one_is_declared(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line", concurrency=1, rate="1/h")
    await operator.post("/queues/line/edit", {"concurrency": "No limit", "rate": "no limit"})
    page = await operator.read("/queues/line")
    assert "declared 1, now no limit (edited)" in page
    assert "declared 1/h, now no limit (edited)" in page
    await scene.many(2)
    for job in await scene.conn.fetch("select id from penstock.job"):
        await scene.start(job["id"])


async def test_no_limit_where_none_is_declared_drops_the_override(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("line")
    await operator.post("/queues/line/edit", {"concurrency": "3"})
    await operator.post("/queues/line/edit", {"was_concurrency": "3", "concurrency": "no limit"})
    assert await overrides(scene.conn) == {}


async def test_every_option_can_be_set_and_is_shown_as_it_was_typed(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("line")
    typed = {
        "concurrency": "3",
        "rate": "500/min",
        "burst": "20",
        "order": "fair",
        "aging_step_seconds": "30 s",
        "timeout_seconds": "90 min",
        "stale_after_seconds": "45 s",
        "stuck_after_seconds": "2 h",
        "attempts": "5",
        "backoff": "exponential",
        "delay_seconds": "0.5 s",
        "backoff_max_seconds": "1 d",
        "recovery": "0",
        "retention_seconds": "30 d",
        "retention_failed_seconds": "forever",
    }
    answer = await operator.post("/queues/line/edit", typed)
    assert answer.status_code == 200, text(answer)
    assert await overrides(scene.conn) == {
        "concurrency": 3,
        "rate": "500/min",
        "burst": 20,
        "order": "fair",
        "aging_step_seconds": 30,
        "timeout_seconds": 5_400,
        "stale_after_seconds": 45,
        "stuck_after_seconds": 7_200,
        "attempts": 5,
        "backoff": "exponential",
        "delay_seconds": 0.5,
        "backoff_max_seconds": 86_400,
        "recovery": 0,
        "retention_seconds": 2_592_000,
        "retention_failed_seconds": "forever",
    }
    for name, value in typed.items():
        if name not in ("order", "backoff"):
            assert f'name="{name}" value="{value}"' in answer.text, name
    assert '<option value="fair" selected>' in answer.text


@pytest.mark.parametrize(
    ("field", "typed", "said"),
    [
        ("concurrency", "many", "Jobs at once must be a whole number from 1 to 1,000,000"),
        ("concurrency", "0", "Jobs at once must be a whole number from 1 to 1,000,000"),
        ("rate", "fast", 'Rate must look like "500/min"'),
        ("burst", "3", "Burst needs a rate."),
        ("order", "random", "Order must be one of strict, aging, fair."),
        ("timeout_seconds", "soon", "Time-out must be a length of time like 90 s"),
        ("timeout_seconds", "0", "must be a number of seconds, more than 0"),
        ("timeout_seconds", "4000 d", "at most ten years"),
        ("recovery", "1.5", "Recoveries must be a whole number from 0 to 1,000."),
        ("retention_seconds", "never", "or “forever”"),
    ],
)
async def test_what_cannot_be_is_said_beside_its_field_and_what_was_typed_stays(
    operator: Visitor, scene: Scene, field: str, typed: str, said: str
) -> None:
    await scene.queue("line")
    answer = await operator.post("/queues/line/edit", {"attempts": "7", field: typed})
    assert answer.status_code == 422
    assert "Nothing was changed: 1 field cannot be as typed." in text(answer)
    assert said in text(answer)
    begun = answer.text.index(f'id="option-{field}"')
    line = answer.text[begun : answer.text.index("</tr>", begun)]
    assert 'class="problem"' in line
    assert 'aria-invalid="true"' in line
    if field != "order":
        assert f'value="{typed}"' in line
    assert 'name="attempts" value="7"' in answer.text
    assert await overrides(scene.conn) == {}
    assert "hx-get" not in answer.text, "a page that looks again would lose what was typed"


async def test_an_order_cannot_change_under_live_jobs(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line", order="strict")
    await scene.queued()
    answer = await operator.post("/queues/line/edit", {"order": "fair"})
    assert answer.status_code == 422
    assert "Let it drain, or declare a new queue." in text(answer)
    assert '<option value="fair" selected>' in answer.text


async def test_going_back_to_what_is_declared_asks_first(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line", concurrency=4)
    answer = await operator.post("/queues/line/reset")
    assert "Nothing was edited" in text(answer)
    await operator.post("/queues/line/edit", {"concurrency": "10", "attempts": "9"})
    asked = await operator.post("/queues/line/reset")
    assert "Jobs at once: 10 now, 4 again." in text(asked)
    assert "Attempts: 9 now, the default again." in text(asked)
    assert (await overrides(scene.conn))["concurrency"] == 10
    done = await operator.post("/queues/line/reset", {"confirm": "yes"})
    assert "Queue line is as declared again." in text(done)
    assert await overrides(scene.conn) == {}


async def test_a_queue_is_paused_with_a_reason_and_resumed(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    await scene.running()
    await scene.many(2)
    answer = await operator.post("/queues/line/pause", {"reason": " a new <model> comes "})
    assert "Queue line is paused: 2 queued, 1 still running." in text(answer)
    kept = await conn.fetchval("select paused_reason from penstock.queue")
    assert kept == "a new <model> comes"
    page = await operator.get("/queues/line")
    assert "a new <model> comes" in text(page)
    assert "<model>" not in page.text
    assert "Resume" in text(page)
    answer = await operator.post("/queues/line/resume")
    assert "Queue line goes on: 2 queued." in text(answer)
    assert await conn.fetchval("select paused_at from penstock.queue") is None


async def test_resuming_wakes_workers_that_rest(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line")
    told: list[str] = []

    def note(_conn: object, _pid: object, _channel: object, queue: object) -> None:
        told.append(str(queue))

    await scene.conn.add_listener("penstock_job", note)
    await operator.post("/queues/line/pause")
    assert told == []
    await operator.post("/queues/line/resume")
    await operator.post("/queues/line/edit", {"concurrency": "2"})
    await scene.conn.execute("select 1")
    assert told == ["line", "line"]


async def test_a_queue_held_by_its_provider_is_let_go_on_by_resume(
    operator: Visitor, scene: Scene
) -> None:
    await scene.outage("model", cls="quota")
    page = await operator.read("/queues/model")
    assert "The provider's quota or credit is used up" in page
    assert "until somebody acts" in page
    answer = await operator.post("/queues/model/resume")
    assert "Queue model goes on" in text(answer)


async def test_a_resumed_queue_whose_provider_is_away_says_that_jobs_still_wait(
    operator: Visitor, scene: Scene
) -> None:
    await scene.outage("model")
    await operator.post("/queues/model/pause")
    answer = await operator.post("/queues/model/resume")
    assert "The pause is over, but jobs still wait: the provider of queue model" in text(answer)


async def test_the_circuit_of_an_outage_tells_class_since_and_next_try(
    operator: Visitor, scene: Scene
) -> None:
    await scene.outage("model")
    page = await operator.read("/queues/model")
    assert "Open: jobs wait" in page
    assert "the provider cannot be reached" in page
    assert "Next try" in page
    answer = await operator.post("/queues/model/close")
    assert "The circuit of queue model is closed" in text(answer)
    assert await scene.conn.fetchval("select state from penstock.circuit") == "closed"


async def test_a_provider_that_refuses_many_calls_is_told_with_what_may_run(
    operator: Visitor, scene: Scene
) -> None:
    """D4"""
    await scene.outage("model")
    await scene.conn.execute(
        "update penstock.circuit set state = 'ramping', class = null, allowed = 3, refused = 0.47,"
        " next_at = null where queue_id = (select id from penstock.queue where name = 'model')"
    )
    await scene.conn.execute("update penstock.alert set cleared_at = now()")
    page = await operator.read("/queues/model")
    assert "Refuses calls" in page
    assert "about half of its last calls" in page
    overview = await operator.read("/")
    assert "The provider of queue model refuses about half of its calls." in overview
    assert "At most 3" in overview


async def test_a_circuit_is_opened_by_hand_with_a_reason(
    operator: Visitor, scene: Scene, conn: asyncpg.Connection
) -> None:
    await scene.queued()
    answer = await operator.post("/queues/line/open", {"reason": "moving house"})
    assert "The circuit of queue line is open" in text(answer)
    found = await conn.fetchrow("select state, class, reason from penstock.circuit")
    assert found
    assert tuple(found) == ("open", None, "moving house")
    page = await operator.read("/queues/line")
    assert "Stopped by hand" in page
    assert "opened by hand" in page
    await operator.post("/queues/line/pause")
    answer = await operator.post("/queues/line/close")
    assert "The queue is still paused: resume it, too." in text(answer)


@pytest.mark.parametrize("verb", ["edit", "reset", "pause", "resume", "open", "close"])
async def test_nothing_is_done_to_a_queue_without_a_token_or_that_is_not_there(
    operator: Visitor, scene: Scene, verb: str
) -> None:
    await scene.queue("line", concurrency=4)
    await scene.conn.execute("select penstock.edit_queue('line', $1)", {"concurrency": 10})
    before = await scene.conn.fetchrow("select overrides, paused_at from penstock.queue")
    form: dict[str, object] = {"confirm": "yes", "concurrency": "2"}
    answer = await operator.send(f"/queues/line/{verb}", form)
    assert answer.status_code == 403
    answer = await operator.post(f"/queues/nowhere/{verb}", form)
    assert answer.status_code == 404
    assert "There is no queue nowhere" in text(answer)
    assert await scene.conn.fetchrow("select overrides, paused_at from penstock.queue") == before
    assert await scene.conn.fetchval("select state from penstock.circuit") == "closed"


async def test_a_reason_that_cannot_be_stored_is_refused(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line")
    for verb in ("pause", "open"):
        answer = await operator.post(f"/queues/line/{verb}", {"reason": "a\x00b"})
        assert answer.status_code == 422
        assert "NUL" in text(answer)


async def test_the_oldest_that_waits_is_told(operator: Visitor, scene: Scene, clock: Clock) -> None:
    await scene.queued()
    await clock.advance("3m")
    await scene.queued()
    assert "2 queued, the oldest for" in await operator.read("/queues/line")
