"""Many jobs at once: retried or cancelled, those that were ticked or all that fit a filter.

First a page says what will happen, to exactly which jobs; then each is done on its own, as the API
does one, so that what is refused to some stops none of the others.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from penstock.base.wording import count
from penstock.dashboard.components import sentences
from penstock.dashboard.components.filters import Filter, read_filter, read_id
from penstock.dashboard.frame import action, backend, go, render
from penstock.engine.jobs.info import JobInfo
from penstock.engine.queries.lists import JobRows
from penstock.engine.states import JobStatus
from penstock.errors import Invalid, Refused, Unavailable
from penstock.http.backend import Backend
from penstock.http.routes.jobs import retry_job

MOST = 1_000
# A page looks at 100,000 jobs: so often it goes on where it has not found enough.
_MOST_LOOKS = 10
_AT_ONCE = 4
_LISTED = 20
_WAITING = (JobStatus.SCHEDULED, JobStatus.QUEUED)
_AT_WORK = (JobStatus.RUNNING, JobStatus.AWAITING)

# In one word what became of a job, for counting.
Act = Callable[[Backend, UUID], Awaitable[str]]


@action("/jobs/bulk")
async def bulk(request: Request, form: FormData) -> Response:
    wanted = read_filter(form)
    act, _, everything = str(form.get("act", "")).partition("_")
    if act not in _ACTS:
        raise Invalid("It was not said what to do.", code="invalid_request", field="act")
    if form.get("confirm") == "yes":
        done = await do(backend(request), _ids(form), _ACTS[act])
        return go(request, wanted.address(), notice=done.words(act), bad=bool(done.failures))
    rows = backend(request).engine.rows
    if everything:
        found, more = await matching(rows, wanted, act)
    else:
        found, more = await rows.read(_ids(form)), False
    if not found:
        said = "None of them can be done that to." if everything else "No job was ticked."
        return go(request, wanted.address(), notice=f"{said} Nothing was done.", bad=True)
    return render(
        request,
        "jobs/jobs_bulk.html",
        act=act,
        wanted=wanted,
        found=found,
        more=more,
        listed=_LISTED,
        plan=_plan(act, found),
        note=sentences.note,
        took=sentences.took,
    )


async def matching(rows: JobRows, wanted: Filter, act: str) -> tuple[list[JobInfo], bool]:
    """Those of a filter that it can be done to, up to MOST; and whether there may be more.

    Where no state is asked for, to retry means what failed, and to cancel what has not ended.
    """
    if wanted.status is not None:
        states: Sequence[JobStatus] = (wanted.status,)
    else:
        states = (JobStatus.FAILED,) if act == "retry" else (*_AT_WORK, *_WAITING)
    found: list[JobInfo] = []
    for state in states:
        one = replace(wanted, status=state)
        before = None
        for _ in range(_MOST_LOOKS):
            page = await rows.page(
                one.jobs, batch=one.batch, limit=MOST - len(found), before=before
            )
            found += page.items
            before = page.after
            if before is None or len(found) == MOST:
                break
        if before is not None:
            return found, True
    return found, False


@dataclass(slots=True)
class Done:
    """What became of each."""

    asked: int
    words_by: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    """Not told: the database went away."""

    def words(self, act: str) -> str:
        """`Retried 10 of 12 jobs: 8 submitted again, 2 due now. 2 refused: …`."""
        verb = "Retried" if act == "retry" else "Cancelled"
        went = self.words_by.total()
        said = [f"{verb} {went:,} of {count(self.asked, 'job')}"]
        if self.words_by:
            said[0] += ": " + ", ".join(f"{n:,} {how}" for how, n in self.words_by.items())
        said += [f"{n:,} not done: {why}" for why, n in self.failures.items()]
        if self.unknown:
            said.append(
                f"of {self.unknown:,} it is not known, because the database could not be reached:"
                " look before you do it again"
            )
        return ". ".join(said) + "."


async def do(behind: Backend, ids: Sequence[UUID], act: Act) -> Done:
    """Each on its own, a few at a time."""
    done = Done(len(ids))
    left = iter(ids)

    async def work() -> None:
        for job_id in left:
            try:
                how = await act(behind, job_id)
            except Refused as error:
                done.failures[_why(error)] += 1
            except Unavailable:
                done.unknown += 1
            else:
                (done.failures if how in _CHANGED_NOTHING else done.words_by)[how] += 1

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    return done


async def _retry(behind: Backend, job_id: UUID) -> str:
    found = await retry_job(behind, job_id)
    if found.id == job_id:
        return "due now"
    return "the same job is at work already" if found.deduplicated else "submitted again"


async def _cancel(behind: Backend, job_id: UUID) -> str:
    was = await behind.engine.rows.read([job_id])
    found = await behind.engine.texts.cancel(job_id)
    if found.status in _AT_WORK:
        return "told to stop"
    ended_before = was and was[0].finished_at is not None
    return "had ended before" if ended_before else "ended at once"


_ACTS: dict[str, Act] = {"retry": _retry, "cancel": _cancel}
_CHANGED_NOTHING = frozenset({"the same job is at work already", "had ended before"})
_REFUSALS = {
    "insufficient_credits": "their account has not enough credits",
    "rate_limited": "their account has submitted as many jobs as its plan allows in an hour",
    "job_not_finished": "they have not ended, so there is nothing to retry",
    "unknown_job": "they are no longer kept",
    "unknown_kind": "their kind of job is no longer declared",
}


def _why(error: Refused) -> str:
    return _REFUSALS.get(error.code, error.message.removesuffix("."))


def _ids(form: FormData) -> list[UUID]:
    found = [read_id(str(one)) for one in form.getlist("job")]
    return list(dict.fromkeys(one for one in found if one is not None))[:MOST]


@dataclass(frozen=True, slots=True)
class Plan:
    """What will happen to how many."""

    lines: list[str]
    doable: int


def _plan(act: str, found: Sequence[JobInfo]) -> Plan:
    states = Counter(row.status for row in found)
    waiting = sum(states[one] for one in _WAITING)
    at_work = sum(states[one] for one in _AT_WORK)
    ended = len(found) - waiting - at_work
    if act == "cancel":
        return _cancel_plan(found, waiting, at_work, ended)
    lines = []
    due = states[JobStatus.SCHEDULED]
    if ended:
        lines.append(f"{_has(ended, 'has', 'have')} ended: submitted again, as new jobs.")
    if due:
        lines.append(f"{_has(due, 'is', 'are')} scheduled: due now instead of later.")
    if stays := len(found) - ended - due:
        lines.append(f"{_has(stays, 'has', 'have')} not ended: nothing to retry there.")
    if price := _price(row for row in found if row.finished_at):
        lines.append(
            f"{count(price, 'credit')} will be reserved again. Where an account has too few, "
            "that job is refused, and the others go on."
        )
    return Plan(lines, ended + due)


def _cancel_plan(found: Sequence[JobInfo], waiting: int, at_work: int, ended: int) -> Plan:
    lines = []
    if waiting:
        lines.append(f"{_has(waiting, 'waits', 'wait')}: ended at once, and never started.")
    if at_work:
        lines.append(
            f"{_has(at_work, 'is', 'are')} at work: told to stop, which takes until the handler"
            " hears of it. What they have done outside cannot be taken back."
        )
    if ended:
        lines.append(f"{_has(ended, 'has', 'have')} ended already: nothing changes there.")
    if back := _price(row for row in found if row.status in _WAITING):
        lines.append(f"{count(back, 'reserved credit')} of those that wait go back.")
    if _price(row for row in found if row.status in _AT_WORK):
        lines.append("Of those at work, what they have not delivered goes back, too.")
    return Plan(lines, waiting + at_work)


def _price(jobs: Iterable[JobInfo]) -> int:
    return sum(job.credits["reserved"] for job in jobs if job.credits)


def _has(number: int, one: str, many: str) -> str:
    return f"{count(number, 'job')} {one if number == 1 else many}"
