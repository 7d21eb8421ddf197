"""Retry or cancel many jobs: the selected ones, or all that match a filter.

First a page shows what will happen to exactly which jobs. Then each job is retried or cancelled by
itself, as the API does it, so that a refusal for one job does not affect the others.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from penstock.base.wording import count
from penstock.dashboard.components.filters import Filter, read_filter, read_id
from penstock.dashboard.frame import (
    FormData,
    Request,
    Response,
    action,
    backend,
    go,
    render,
)
from penstock.engine.jobs.info import JobInfo
from penstock.engine.queries.lists import JobRows
from penstock.engine.states import FINISHED, JobStatus
from penstock.errors import Invalid, Refused, Unavailable
from penstock.http.backend import Backend
from penstock.http.routes.jobs import retry_job

MOST = 1_000
# A query reads up to 100,000 jobs; so many queries are made when one does not find enough.
_MOST_PAGES = 10
_AT_ONCE = 4
_LISTED = 20
_WAITING = (JobStatus.SCHEDULED, JobStatus.QUEUED)
_AT_WORK = (JobStatus.RUNNING, JobStatus.AWAITING)

# Acts on a job and returns the effect in a few words, by which jobs are counted.
Act = Callable[[Backend, UUID], Awaitable[str]]


@action("/jobs/bulk")
async def bulk(request: Request, form: FormData) -> Response:
    wanted = read_filter(form)
    act, _, everything = str(form.get("act", "")).partition("_")
    if act not in _ACTS:
        raise Invalid(
            "The form names no action.",
            code="invalid_request",
            field="act",
            hint="Use the buttons of the page.",
        )
    if form.get("confirm") == "yes":
        done = await do(backend(request), _ids(form), _ACTS[act])
        return go(request, wanted.address(), notice=done.words(act), bad=bool(done.failures))
    rows = backend(request).engine.rows
    if everything:
        jobs, more = await matching(rows, wanted, act)
    else:
        jobs, more = await rows.read(_ids(form)), False
    if not jobs:
        why = f"None of these jobs can be {_DONE[act]}." if everything else "No job is selected."
        return go(request, wanted.address(), notice=f"{why} Nothing was changed.", bad=True)
    effects, doable = (_cancel_effects if act == "cancel" else _retry_effects)(jobs)
    return render(
        request,
        "jobs/jobs_bulk.html",
        act=act,
        wanted=wanted,
        jobs=jobs,
        more=more,
        listed=_LISTED,
        effects=[sentence for number, sentence in effects if number],
        doable=doable,
    )


async def matching(rows: JobRows, wanted: Filter, act: str) -> tuple[list[JobInfo], bool]:
    """Return up to MOST jobs of a filter that can be retried or cancelled, and whether more exist.

    Without a status in the filter, retry takes failed jobs, and cancel takes unfinished ones.
    """
    states: Sequence[JobStatus] = (*_AT_WORK, *_WAITING)
    if wanted.status is not None:
        states = (wanted.status,)
    elif act == "retry":
        states = (JobStatus.FAILED,)
    jobs: list[JobInfo] = []
    for state in states:
        filtered = replace(wanted, status=state)
        before = None
        for _ in range(_MOST_PAGES):
            page = await rows.page(
                filtered, batch=wanted.batch, limit=MOST - len(jobs), before=before
            )
            jobs += page.items
            before = page.after
            if before is None or len(jobs) == MOST:
                break
        if before is not None:
            return jobs, True
    return jobs, False


@dataclass(slots=True)
class Done:
    """The effects on all jobs, counted."""

    asked: int
    effects: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    """Jobs without an answer, because the database became unavailable."""

    def words(self, act: str) -> str:
        """Return `Retried 10 of 12 jobs: 8 submitted again, 2 due now. 2 not retried: …`."""
        done = _DONE[act]
        text = f"{done.capitalize()} {self.effects.total():,} of {count(self.asked, 'job')}"
        if self.effects:
            text += ": " + ", ".join(f"{n:,} {effect}" for effect, n in self.effects.items())
        text = ". ".join([text, *(f"{n:,} not {done}: {why}" for why, n in self.failures.items())])
        if self.unknown:
            text += (
                f". For {self.unknown:,} the outcome is unknown, because the database could not be"
                " reached: check them before you try again"
            )
        return f"{text}."


async def do(behind: Backend, ids: Sequence[UUID], act: Act) -> Done:
    """Act on each job by itself, a few at a time."""
    done = Done(len(ids))
    left = iter(ids)

    async def work() -> None:
        for job_id in left:
            try:
                effect = await act(behind, job_id)
            except Refused as error:
                done.failures[_REFUSALS.get(error.code, error.message.removesuffix("."))] += 1
            except Unavailable:
                done.unknown += 1
            else:
                (done.failures if effect in _CHANGED_NOTHING else done.effects)[effect] += 1

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    return done


async def _retry(behind: Backend, job_id: UUID) -> str:
    job = await retry_job(behind, job_id)
    if job.id == job_id:
        return "due now"
    return "the same job is already waiting or running" if job.deduplicated else "submitted again"


async def _cancel(behind: Backend, job_id: UUID) -> str:
    before = await behind.engine.rows.read([job_id])
    after = await behind.engine.texts.cancel(job_id)
    if after.status in _AT_WORK:
        return "asked to stop"
    return "had already finished" if before and before[0].finished_at else "cancelled at once"


_ACTS: dict[str, Act] = {"retry": _retry, "cancel": _cancel}
_DONE = {"retry": "retried", "cancel": "cancelled"}
_CHANGED_NOTHING = frozenset({"the same job is already waiting or running", "had already finished"})
_REFUSALS = {
    "insufficient_credits": "their account has not enough credits",
    "rate_limited": "their account has submitted as many jobs as its plan allows in an hour",
    "job_not_finished": "they have not finished, so there is nothing to retry",
    "unknown_job": "they are no longer kept",
    "unknown_kind": "their kind of job is no longer declared",
}


def _ids(form: FormData) -> list[UUID]:
    ids = (read_id(str(text)) for text in form.getlist("job"))
    return list(dict.fromkeys(job_id for job_id in ids if job_id is not None))[:MOST]


# What will happen: the number of jobs and a sentence. Sentences about no job are not shown.
Effects = list[tuple[int, str]]


def _retry_effects(jobs: Sequence[JobInfo]) -> tuple[Effects, int]:
    """Return what a retry does, and to how many jobs it does something."""
    finished, price = _among(jobs, FINISHED)
    due, _ = _among(jobs, (JobStatus.SCHEDULED,))
    others = len(jobs) - finished - due
    return [
        (finished, f"{_has(finished, 'has', 'have')} finished: submitted again as new jobs."),
        (due, f"{_has(due, 'is', 'are')} scheduled: due now instead of later."),
        (others, f"{_has(others, 'has', 'have')} not finished: nothing to retry."),
        (
            price,
            (
                f"{count(price, 'credit')} will be reserved again. If an account has too few"
                " credits, its job is refused; the others are not affected."
            ),
        ),
    ], finished + due


def _cancel_effects(jobs: Sequence[JobInfo]) -> tuple[Effects, int]:
    """Return what a cancel does, and to how many jobs it does something."""
    waiting, back = _among(jobs, _WAITING)
    at_work, price = _among(jobs, _AT_WORK)
    finished, _ = _among(jobs, FINISHED)
    return [
        (waiting, f"{_has(waiting, 'waits', 'wait')}: cancelled at once and never started."),
        (
            at_work,
            (
                f"{_has(at_work, 'is', 'are')} running: asked to stop; the handler stops at its"
                " next check. Effects outside of Penstock cannot be undone."
            ),
        ),
        (finished, f"{_has(finished, 'has', 'have')} already finished: nothing changes."),
        (back, f"Of the waiting jobs, {count(back, 'reserved credit')} will be refunded."),
        (price, "Of the running jobs, credits for undelivered results will be refunded, too."),
    ], waiting + at_work


def _among(jobs: Sequence[JobInfo], states: Collection[JobStatus]) -> tuple[int, int]:
    """Count the jobs with these statuses, and the credits that are reserved for them."""
    chosen = [job for job in jobs if job.status in states]
    return len(chosen), sum(job.credits["reserved"] for job in chosen if job.credits)


def _has(number: int, singular: str, plural: str) -> str:
    return f"{count(number, 'job')} {singular if number == 1 else plural}"
