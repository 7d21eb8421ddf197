"""The page of stuck jobs: stage, time, cause, and what Penstock does about it automatically."""

from uuid import UUID

from penstock.dashboard.components.words import short
from penstock.dashboard.frame import (
    FormData,
    Request,
    Response,
    action,
    backend,
    confirm,
    go,
    page,
    render,
)
from penstock.engine.states import FINISHED

MOST = 100


@page("/stuck")
async def show(request: Request) -> Response:
    rows = await backend(request).engine.lists.stuck(limit=MOST + 1)
    return render(request, "queues/stuck.html", stuck=rows[:MOST], more=len(rows) > MOST, most=MOST)


@action("/stuck/{job_id:uuid}/cancel")
async def cancel(request: Request, form: FormData, job_id: UUID) -> Response:
    jobs = backend(request).engine.jobs
    job = await jobs.read(job_id)
    if job.status in FINISHED:
        return go(request, "stuck", notice=f"Job {short(job_id)} has already finished.")
    if form.get("confirm") != "yes":
        return confirm(
            request,
            section="Stuck",
            heading=f"Cancel job {short(job_id)}?",
            effects=[
                f"It is of kind {job.kind}, and will not be started again.",
                "If it is running, its worker is asked to stop it; its work so far is lost.",
                "Its reserved credits are refunded to its account.",
            ],
            target=f"stuck/{job_id}/cancel",
            button="Cancel job",
            back="stuck",
        )
    job = await jobs.cancel(job_id)
    effect = "was cancelled" if job.status == "cancelled" else "was asked to stop"
    return go(request, "stuck", notice=f"Job {short(job_id)} {effect}.")
