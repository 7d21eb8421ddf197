"""Bulk retry and cancel: the confirmation page, the effects, and the report of refusals."""

import re
from uuid import UUID, uuid4

import httpx
import pytest

from browser.scene import Scene
from penstock.dashboard.pages import bulk
from support.dashboard.visitor import Visitor, text


async def test_selected_jobs_are_cancelled_after_a_page_that_lists_the_effects(
    operator: Visitor, scene: Scene
) -> None:
    await scene.account("u1", credits=10)
    waiting = [await scene.queued(account="u1", price=2), await scene.scheduled()]
    running = await scene.running()
    ended = await scene.succeeded()
    uncounted_failures = await scene.queued()
    asked = await operator.post("/jobs/bulk", selected("cancel", *waiting, running, ended))
    page_text = text(asked)
    assert "Cancel 4 jobs?" in page_text
    assert "2 jobs wait: cancelled at once and never started." in page_text
    assert "1 job is running: asked to stop" in page_text
    assert "1 job has already finished: nothing changes." in page_text
    assert "Of the waiting jobs, 2 reserved credits will be refunded." in page_text
    assert (await scene.read(waiting[0]))["status"] == "queued"  # no job has changed yet
    done = await operator.post("/jobs/bulk", confirmed(asked))
    assert (
        "Cancelled 3 of 4 jobs: 2 cancelled at once, 1 asked to stop."
        " 1 not cancelled: had already finished." in text(done)
    )
    assert [(await scene.read(one))["status"] for one in waiting] == ["cancelled"] * 2
    assert (await scene.read(running))["cancel_requested"]
    assert (await scene.read(uncounted_failures))["status"] == "queued"


async def test_a_bulk_retry_reports_successes_and_refusals(operator: Visitor, scene: Scene) -> None:
    await scene.account("rich", credits=10)
    await scene.account("poor", credits=2)
    paid = await scene.failed(account="rich", price=2, dedupe_key="a")
    unpaid = await scene.succeeded(account="poor", price=2)
    twin = await scene.failed(dedupe_key="twin")
    await scene.queued(dedupe_key="twin")
    later = await scene.scheduled()
    running = await scene.running()
    jobs = (unpaid, paid, twin, later, running)
    asked = await operator.post("/jobs/bulk", selected("retry", *jobs))
    page_text = text(asked)
    assert "3 jobs have finished: submitted again as new jobs." in page_text
    assert "1 job is scheduled: due now instead of later." in page_text
    assert "1 job has not finished: nothing to retry." in page_text
    assert "4 credits will be reserved again." in page_text
    done = text(await operator.post("/jobs/bulk", confirmed(asked)))
    assert "Retried 2 of 5 jobs" in done
    assert "1 submitted again" in done
    assert "1 due now" in done
    assert "1 not retried: their account has not enough credits" in done
    assert "1 not retried: the same job is already waiting or running" in done
    assert "1 not retried: they have not finished, so there is nothing to retry" in done
    assert (await scene.read(paid))["retried_by"] is not None
    assert (await scene.read(unpaid))["retried_by"] is None
    assert (await scene.read(later))["status"] == "queued"


async def test_all_jobs_that_match_a_filter_are_retried_and_no_others(
    operator: Visitor, scene: Scene
) -> None:
    mine = [await scene.failed(topic="a1") for _ in range(3)]
    other = await scene.failed(topic="a2")
    good = await scene.succeeded(topic="a1")
    asked = await operator.post("/jobs/bulk", {"act": "retry_all", "topic": "a1"})
    assert "Retry 3 jobs?" in text(asked)
    done = await operator.post("/jobs/bulk", confirmed(asked))
    assert "Retried 3 of 3 jobs: 3 submitted again." in text(done)
    assert done.url.query == b"topic=a1"  # the filter is kept
    assert all([(await scene.read(one))["retried_by"] for one in mine])
    assert not (await scene.read(other))["retried_by"]
    assert not (await scene.read(good))["retried_by"]


async def test_without_a_status_all_unfinished_jobs_are_cancelled(
    operator: Visitor, scene: Scene
) -> None:
    await scene.running()
    await scene.scheduled()
    await scene.queued()
    await scene.succeeded()
    asked = await operator.post("/jobs/bulk", {"act": "cancel_all", "kind": "line"})
    assert "Cancel 3 jobs?" in text(asked)


async def test_the_number_of_jobs_is_bounded_and_the_page_says_so(
    operator: Visitor, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MOST", 5)
    await scene.many(8)
    asked = await operator.post("/jobs/bulk", {"act": "cancel_all", "status": "queued"})
    assert "Cancel 5 jobs?" in text(asked)
    assert "There may be more queued jobs: these are the newest." in text(asked)
    done = await operator.post("/jobs/bulk", confirmed(asked))
    assert "Cancelled 5 of 5 jobs: 5 cancelled at once." in text(done)
    assert "3 jobs" in text(done)


async def test_without_a_selection_nothing_is_changed(operator: Visitor, scene: Scene) -> None:
    job = await scene.queued()
    for form in ({"act": "cancel"}, {"act": "cancel", "confirm": "yes"}):
        answer = await operator.post("/jobs/bulk", form)
        assert "Nothing was changed" in text(answer) or "0 of 0" in text(answer)
    assert (await scene.read(job))["status"] == "queued"
    none = await operator.post("/jobs/bulk", {"act": "retry_all"})
    assert "None of these jobs can be retried. Nothing was changed." in text(none)


async def test_pruned_jobs_are_counted(operator: Visitor, scene: Scene) -> None:
    job = await scene.queued()
    form = {"act": "cancel", "confirm": "yes", "job": [str(job), str(uuid4()), "nonsense"]}
    done = text(await operator.post("/jobs/bulk", form))
    assert "1 cancelled at once. 1 not cancelled: they are no longer kept." in done


async def test_an_unknown_action_is_refused(operator: Visitor, scene: Scene) -> None:
    job = await scene.queued()
    answer = await operator.post("/jobs/bulk", selected("erase", job))
    assert answer.status_code == 422
    assert "The form names no action." in text(answer)


async def test_a_form_without_its_token_changes_nothing(operator: Visitor, scene: Scene) -> None:
    job = await scene.queued()
    answer = await operator.send("/jobs/bulk", selected("cancel", job) | {"confirm": "yes"})
    assert answer.status_code == 403
    assert (await scene.read(job))["status"] == "queued"


def selected(act: str, *jobs: UUID) -> dict[str, object]:
    return {"act": act, "job": [str(one) for one in jobs]}


def confirmed(asked: httpx.Response) -> dict[str, object]:
    """Read the fields of the confirmation form."""
    assert asked.status_code == 200, text(asked)
    form = asked.text.partition('action="../jobs/bulk"')[2].partition("</form>")[0]
    fields: dict[str, object] = {}
    for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form):
        if name == "job":
            fields["job"] = [*fields.get("job", []), value]  # type: ignore[misc]
        else:
            fields[name] = value
    return fields
