"""The pages of queues: their texts in each state, and their buttons."""

import html as entities
import re

import asyncpg
import pytest

from browser.scene import Scene
from support.clock import Clock
from support.dashboard.visitor import Visitor, text


async def row(operator: Visitor, queue: str, path: str = "/queues") -> str:
    """Return the text of one queue's row."""
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


async def test_without_queues_the_page_says_how_to_declare_one(operator: Visitor) -> None:
    page = await operator.read("/queues")
    assert "No queues yet." in page
    assert "penstock.toml" in page


async def test_a_queue_is_listed_with_queued_and_running_jobs_and_its_limits(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("line", concurrency=4, rate="500/min", order="strict")
    await scene.running()
    await scene.many(3)
    await scene.scheduled()
    shown = await row(operator, "line")
    assert "3 + 1 scheduled" in shown
    assert "1 of 4" in shown
    assert "500/min" in shown
    assert "strict" in shown
    assert "1 queue, none in trouble." in await operator.read("/queues")


async def test_queues_in_trouble_come_first_with_the_reason(
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
    assert "Provider unavailable" in await row(operator, "model")
    assert "next try" in await row(operator, "model")
    assert "action needed" in await row(operator, "vision")
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
    assert "No queue matches." in await operator.read("/queues?q=%3Cscript%3E")


async def test_an_edited_queue_is_marked_in_the_list(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line", concurrency=4)
    assert "edited" not in await row(operator, "line")
    await scene.conn.execute("select penstock.edit_queue('line', $1)", {"concurrency": 10})
    assert "edited Jobs at once 10" in await row(operator, "line")


async def test_an_unknown_queue_answers_404(operator: Visitor) -> None:
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
    page_text = text(page)
    assert "../jobs?queue=line&amp;status=failed" in page.text
    assert "../jobs?kind=line" in page.text
    assert "the oldest for" in page_text
    assert "1 \N{MULTIPLICATION SIGN} the answer of the model is not usable" in page_text
    assert "Run by workers" in page_text
    hours = page_text[page_text.index("The last 24 hours") :]
    assert "Succeeded Failed Cancelled Retried Average duration" in hours
    assert " 1 1 0 0 " in hours


async def test_a_queue_without_finished_jobs_says_so(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line")
    assert "No jobs finished." in await operator.read("/queues/line")


async def test_an_edited_limit_is_shown_beside_the_declared_one(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("line", concurrency=4)
    answer = await operator.post(
        "/queues/line/edit", {"concurrency": "10", "timeout_seconds": "5 min"}
    )
    assert "Jobs at once is now 10; Time-out is now 5 min." in text(answer)
    assert await overrides(scene.conn) == {"concurrency": 10, "timeout_seconds": 300}
    page = await operator.read("/queues/line")
    assert "declared 4, now 10 (edited)" in page
    assert "Time-out : not declared, now 5 min (edited)" in page


async def test_a_changed_declaration_is_shown_beside_the_edit(
    operator: Visitor, scene: Scene
) -> None:
    """The app restarts with another limit: the operator's edit stays in force."""
    await scene.queue("line", concurrency=4)
    await operator.post("/queues/line/edit", {"concurrency": "10"})
    await scene.queue("line", concurrency=6)
    assert "declared 6, now 10 (edited)" in await operator.read("/queues/line")
    await operator.post("/queues/line/reset", {"confirm": "yes"})
    page = await operator.read("/queues/line")
    assert "(edited)" not in page
    in_force = await scene.conn.fetchval("select concurrency from penstock.queue")
    assert in_force == 6


async def test_an_empty_field_restores_the_declared_value(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line", concurrency=4)
    await operator.post("/queues/line/edit", {"concurrency": "10", "attempts": "7"})
    answer = await operator.post(
        "/queues/line/edit", {"was_concurrency": "10", "was_attempts": "7", "attempts": "7"}
    )
    assert "Jobs at once is as declared again." in text(answer)
    assert await overrides(scene.conn) == {"attempts": 7}


async def test_a_second_tab_does_not_revert_edits_that_it_has_not_seen(
    operator: Visitor, scene: Scene
) -> None:
    """Its page was rendered before the edit, so its empty field changes nothing."""
    await scene.queue("line", concurrency=4)
    await operator.post("/queues/line/edit", {"concurrency": "10"})
    await operator.post("/queues/line/edit", {"rate": "20/s"})
    assert await overrides(scene.conn) == {"concurrency": 10, "rate": "20/s"}


async def test_a_form_that_changes_nothing_says_so(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line")
    answer = await operator.post("/queues/line/edit")
    assert "Nothing was changed." in text(answer)


async def test_no_limit_overrides_a_declared_one(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line", concurrency=1, rate="1/h")
    await operator.post("/queues/line/edit", {"concurrency": "No limit", "rate": "no limit"})
    page = await operator.read("/queues/line")
    assert "declared 1, now no limit (edited)" in page
    assert "declared 1/h, now no limit (edited)" in page
    await scene.many(2)
    for job in await scene.conn.fetch("select id from penstock.job"):
        await scene.start(job["id"])


async def test_no_limit_without_a_declared_one_drops_the_override(
    operator: Visitor, scene: Scene
) -> None:
    await scene.queue("line")
    await operator.post("/queues/line/edit", {"concurrency": "3"})
    await operator.post("/queues/line/edit", {"was_concurrency": "3", "concurrency": "no limit"})
    assert await overrides(scene.conn) == {}


async def test_every_option_can_be_set_and_is_shown_as_typed(
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
    ("field", "typed", "page_text"),
    [
        ("concurrency", "many", "Jobs at once must be a whole number from 1 to 1,000,000"),
        ("concurrency", "0", "Jobs at once must be a whole number from 1 to 1,000,000"),
        ("rate", "fast", 'Rate must look like "500/min"'),
        ("burst", "3", "Burst needs a rate."),
        ("order", "random", "Order must be one of strict, aging, fair."),
        ("timeout_seconds", "soon", "Time-out must be a duration like 90 s"),
        ("timeout_seconds", "0", "must be a number of seconds, more than 0"),
        ("timeout_seconds", "4000 d", "at most ten years"),
        ("recovery", "1.5", "Recoveries must be a whole number from 0 to 1,000."),
        ("retention_seconds", "never", "or “forever”"),
    ],
)
async def test_an_invalid_value_is_reported_beside_its_field_and_the_input_is_kept(
    operator: Visitor, scene: Scene, field: str, typed: str, page_text: str
) -> None:
    await scene.queue("line")
    answer = await operator.post("/queues/line/edit", {"attempts": "7", field: typed})
    assert answer.status_code == 422
    assert "Nothing was changed: 1 field has a problem." in text(answer)
    assert page_text in text(answer)
    begun = answer.text.index(f'id="option-{field}"')
    line = answer.text[begun : answer.text.index("</tr>", begun)]
    assert 'class="problem"' in line
    assert 'aria-invalid="true"' in line
    if field != "order":
        assert f'value="{typed}"' in line
    assert 'name="attempts" value="7"' in answer.text
    assert await overrides(scene.conn) == {}
    assert "hx-get" not in answer.text, "a refresh would lose the input"


async def test_the_order_cannot_change_while_jobs_are_live(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line", order="strict")
    await scene.queued()
    answer = await operator.post("/queues/line/edit", {"order": "fair"})
    assert answer.status_code == 422
    assert "Let it drain, or declare a new queue." in text(answer)
    assert '<option value="fair" selected>' in answer.text


async def test_a_reset_needs_confirmation(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line", concurrency=4)
    answer = await operator.post("/queues/line/reset")
    assert "Nothing to reset" in text(answer)
    await operator.post("/queues/line/edit", {"concurrency": "10", "attempts": "9"})
    asked = await operator.post("/queues/line/reset")
    assert "Jobs at once: 10 now, 4 after the reset." in text(asked)
    assert "Attempts: 9 now, the default after the reset." in text(asked)
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
    assert "Queue line is resumed: 2 queued." in text(answer)
    assert await conn.fetchval("select paused_at from penstock.queue") is None


async def test_a_resume_wakes_idle_workers(operator: Visitor, scene: Scene) -> None:
    await scene.queue("line")
    notified: list[str] = []

    def note(_conn: object, _pid: object, _channel: object, queue: object) -> None:
        notified.append(str(queue))

    await scene.conn.add_listener("penstock_job", note)
    await operator.post("/queues/line/pause")
    assert notified == []
    await operator.post("/queues/line/resume")
    await operator.post("/queues/line/edit", {"concurrency": "2"})
    await scene.conn.execute("select 1")
    assert notified == ["line", "line"]


async def test_a_resume_releases_a_queue_that_its_provider_holds(
    operator: Visitor, scene: Scene
) -> None:
    await scene.outage("model", cls="quota")
    page = await operator.read("/queues/model")
    assert "The provider's quota or credit is used up" in page
    assert "until an operator resumes it" in page
    answer = await operator.post("/queues/model/resume")
    assert "Queue model is resumed" in text(answer)


async def test_a_resumed_queue_with_an_unavailable_provider_says_that_jobs_still_wait(
    operator: Visitor, scene: Scene
) -> None:
    await scene.outage("model")
    await operator.post("/queues/model/pause")
    answer = await operator.post("/queues/model/resume")
    assert "The queue is resumed, but jobs still wait: the provider of queue model" in text(answer)


async def test_the_circuit_of_an_outage_shows_class_start_and_next_try(
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


async def test_a_provider_that_refuses_many_calls_is_shown_with_the_allowed_jobs(
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
    assert "Provider refuses calls" in page
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
    assert "The queue is still paused; resume it, too." in text(answer)


@pytest.mark.parametrize("verb", ["edit", "reset", "pause", "resume", "open", "close"])
async def test_a_form_without_token_or_for_an_unknown_queue_changes_nothing(
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


async def test_the_age_of_the_oldest_queued_job_is_shown(
    operator: Visitor, scene: Scene, clock: Clock
) -> None:
    await scene.queued()
    await clock.advance("3m")
    await scene.queued()
    assert "2 queued, the oldest for" in await operator.read("/queues/line")
