"""Many jobs at once: what is said before, what is done, and what is said of what was refused."""

import re
from uuid import UUID, uuid4

import httpx
import pytest

from browser.scene import Scene
from penstock.dashboard.pages import bulk
from support.dashboard.visitor import Visitor, text


async def test_ticked_jobs_are_cancelled_after_a_page_that_says_what_will_happen(
    operator: Visitor, scene: Scene
) -> None:
    await scene.account("u1", credits=10)
    waiting = [await scene.queued(account="u1", price=2), await scene.scheduled()]
    running = await scene.running()
    ended = await scene.succeeded()
    uncounted_failures = await scene.queued()
    asked = await operator.post("/jobs/bulk", ticked("cancel", *waiting, running, ended))
    said = text(asked)
    assert "Cancel 4 jobs?" in said
    assert "2 jobs wait: ended at once, and never started." in said
    assert "1 job is at work: told to stop" in said
    assert "1 job has ended already: nothing changes there." in said
    assert "2 reserved credits of those that wait go back." in said
    assert (await scene.read(waiting[0]))["status"] == "queued"  # nothing is done yet
    done = await operator.post("/jobs/bulk", confirmed(asked))
    assert (
        "Cancelled 3 of 4 jobs: 2 ended at once, 1 told to stop. 1 not done: had ended before."
        in text(done)
    )
    assert [(await scene.read(one))["status"] for one in waiting] == ["cancelled"] * 2
    assert (await scene.read(running))["cancel_requested"]
    assert (await scene.read(uncounted_failures))["status"] == "queued"


async def test_retries_with_mixed_outcomes_do_what_can_be_done_and_say_the_rest(
    operator: Visitor, scene: Scene
) -> None:
    await scene.account("rich", credits=10)
    await scene.account("poor", credits=2)
    paid = await scene.failed(account="rich", price=2, dedupe_key="a")
    unpaid = await scene.succeeded(account="poor", price=2)
    twin = await scene.failed(dedupe_key="twin")
    await scene.queued(dedupe_key="twin")
    later = await scene.scheduled()
    running = await scene.running()
    jobs = (unpaid, paid, twin, later, running)
    asked = await operator.post("/jobs/bulk", ticked("retry", *jobs))
    said = text(asked)
    assert "3 jobs have ended: submitted again, as new jobs." in said
    assert "1 job is scheduled: due now instead of later." in said
    assert "1 job has not ended: nothing to retry there." in said
    assert "4 credits will be reserved again." in said
    done = text(await operator.post("/jobs/bulk", confirmed(asked)))
    assert "Retried 2 of 5 jobs" in done
    assert "1 submitted again" in done
    assert "1 due now" in done
    assert "1 not done: their account has not enough credits" in done
    assert "1 not done: the same job is at work already" in done
    assert "1 not done: they have not ended, so there is nothing to retry" in done
    assert (await scene.read(paid))["retried_by"] is not None
    assert (await scene.read(unpaid))["retried_by"] is None
    assert (await scene.read(later))["status"] == "queued"


async def test_all_that_fit_a_filter_are_taken_and_no_others(
    operator: Visitor, scene: Scene
) -> None:
    mine = [await scene.failed(topic="a1") for _ in range(3)]
    other = await scene.failed(topic="a2")
    good = await scene.succeeded(topic="a1")
    asked = await operator.post("/jobs/bulk", {"act": "retry_all", "topic": "a1"})
    assert "Retry 3 jobs?" in text(asked)
    done = await operator.post("/jobs/bulk", confirmed(asked))
    assert "Retried 3 of 3 jobs: 3 submitted again." in text(done)
    assert done.url.query == b"topic=a1"  # back to where they were
    assert all([(await scene.read(one))["retried_by"] for one in mine])
    assert not (await scene.read(other))["retried_by"]
    assert not (await scene.read(good))["retried_by"]


async def test_all_that_have_not_ended_are_cancelled_where_no_state_is_asked_for(
    operator: Visitor, scene: Scene
) -> None:
    await scene.running()
    await scene.scheduled()
    await scene.queued()
    await scene.succeeded()
    asked = await operator.post("/jobs/bulk", {"act": "cancel_all", "kind": "line"})
    assert "Cancel 3 jobs?" in text(asked)


async def test_so_many_at_a_time_and_that_is_said(
    operator: Visitor, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MOST", 5)
    await scene.many(8)
    asked = await operator.post("/jobs/bulk", {"act": "cancel_all", "status": "queued"})
    assert "Cancel 5 jobs?" in text(asked)
    assert "There may be more queued jobs: these are the newest." in text(asked)
    done = await operator.post("/jobs/bulk", confirmed(asked))
    assert "Cancelled 5 of 5 jobs: 5 ended at once." in text(done)
    assert "3 jobs" in text(done)


async def test_nothing_ticked_does_nothing(operator: Visitor, scene: Scene) -> None:
    job = await scene.queued()
    for form in ({"act": "cancel"}, {"act": "cancel", "confirm": "yes"}):
        answer = await operator.post("/jobs/bulk", form)
        assert "Nothing was done" in text(answer) or "0 of 0" in text(answer)
    assert (await scene.read(job))["status"] == "queued"
    none = await operator.post("/jobs/bulk", {"act": "retry_all"})
    assert "None of them can be done that to. Nothing was done." in text(none)


async def test_what_is_not_there_any_more_is_counted_as_such(
    operator: Visitor, scene: Scene
) -> None:
    job = await scene.queued()
    form = {"act": "cancel", "confirm": "yes", "job": [str(job), str(uuid4()), "nonsense"]}
    done = text(await operator.post("/jobs/bulk", form))
    assert "Cancelled 1 of 2 jobs: 1 ended at once. 1 not done: they are no longer kept." in done


async def test_an_act_that_nobody_knows_is_refused(operator: Visitor, scene: Scene) -> None:
    job = await scene.queued()
    answer = await operator.post("/jobs/bulk", ticked("erase", job))
    assert answer.status_code == 422
    assert "It was not said what to do." in text(answer)


async def test_a_form_without_its_token_does_nothing(operator: Visitor, scene: Scene) -> None:
    job = await scene.queued()
    answer = await operator.send("/jobs/bulk", ticked("cancel", job) | {"confirm": "yes"})
    assert answer.status_code == 403
    assert (await scene.read(job))["status"] == "queued"


def ticked(act: str, *jobs: UUID) -> dict[str, object]:
    return {"act": act, "job": [str(one) for one in jobs]}


def confirmed(asked: httpx.Response) -> dict[str, object]:
    """The fields of the form that the page asks with."""
    assert asked.status_code == 200, text(asked)
    form = asked.text.partition('action="../jobs/bulk"')[2].partition("</form>")[0]
    fields: dict[str, object] = {}
    for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form):
        if name == "job":
            fields["job"] = [*fields.get("job", []), value]  # type: ignore[misc]
        else:
            fields[name] = value
    return fields
