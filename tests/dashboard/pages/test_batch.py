"""The page of a batch: its progress, its jobs in order, cancelling the remaining jobs."""

from uuid import UUID, uuid4

import httpx

from browser.scene import Scene
from dashboard.pages.test_jobs import next_of, rows_of
from support.dashboard.visitor import Visitor, text
from support.http.site import Site


async def submit(site: Site, scene: Scene, count: int) -> tuple[str, list[UUID]]:
    await scene.queue()
    answer = await site.admin.post(
        "/v1/jobs/batch",
        json={"jobs": [{"kind": "line", "payload": {"n": n}} for n in range(count)]},
    )
    submitted = answer.json()
    return submitted["batch"], [UUID(item["id"]) for item in submitted["items"]]


async def test_a_batch_shows_its_progress(operator: Visitor, scene: Scene, site: Site) -> None:
    batch, jobs = await submit(site, scene, 4)
    await scene.end(await scene.start(jobs[0]), "succeeded", result={"score": 7})
    await scene.start(jobs[1])
    answer = await operator.get(f"/batches/{batch}")
    page_text = text(answer)
    assert "1 of 4 jobs has finished" in page_text
    assert "1 succeeded , 1 running , 2 waiting" in page_text
    assert '<progress max="4" value="1' in answer.text
    assert shown(answer) == jobs
    assert "score" not in page_text
    assert 'hx-trigger="refresh"' in answer.text


async def test_its_jobs_are_paged(operator: Visitor, scene: Scene, site: Site) -> None:
    batch, jobs = await submit(site, scene, 60)
    first = await operator.get(f"/batches/{batch}")
    assert shown(first) == jobs[:50]
    address = next_of(first)
    assert address is not None
    second = await operator.get(address.removeprefix("."))
    assert shown(second) == jobs[50:]
    assert next_of(second) is None


async def test_remaining_jobs_are_cancelled_after_confirmation(
    operator: Visitor, scene: Scene, site: Site
) -> None:
    batch, jobs = await submit(site, scene, 3)
    await scene.end(await scene.start(jobs[0]), "succeeded")
    await scene.start(jobs[1])
    asked = text(await operator.post(f"/batches/{batch}/cancel"))
    assert "1 waiting job: cancelled at once" in asked
    assert "1 running job: asked to stop" in asked
    done = await operator.post(f"/batches/{batch}/cancel", {"confirm": "yes"})
    assert "1 job of this batch cancelled, 1 asked to stop." in text(done)
    assert [(await scene.read(one))["status"] for one in jobs] == [
        "succeeded",
        "running",
        "cancelled",
    ]


async def test_a_finished_batch_has_no_cancel_button(
    operator: Visitor, scene: Scene, site: Site
) -> None:
    batch, jobs = await submit(site, scene, 1)
    error = {"class": "bug", "message": "why", "retryable": False}
    await scene.end(await scene.start(jobs[0]), "failed", error=error)
    answer = await operator.get(f"/batches/{batch}")
    assert "All have finished; 1 failed" in text(answer)
    assert "Cancel remaining jobs" not in text(answer)
    assert 'hx-trigger="refresh"' not in answer.text


async def test_an_unknown_batch_answers_404(operator: Visitor) -> None:
    answer = await operator.get(f"/batches/{uuid4()}")
    assert answer.status_code == 404
    assert "Batch not found" in text(answer)


def shown(answer: httpx.Response) -> list[UUID]:
    return [UUID(one) for one in rows_of(answer)]
