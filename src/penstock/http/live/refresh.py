"""Turns: what changes without a new version of the job is read again now and then.

These are position, ETA and staleness. A job that is watched alone has a turn of its own. The
waiting jobs of a topic or an account have theirs together, and also whenever one of them comes or
leaves: so one statement reads their positions, and no two jobs of a list have the same one.
"""

import asyncio
import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from penstock.engine.queries.events import Scope, WatchedJob
from penstock.http.live.subscriptions import JobRoom, ScopeRoom

QUEUED_SECONDS = 2.5
OTHERS_SECONDS = 5.0
# How many jobs are read again in a second.
TURNS_A_SECOND = 200
# A scope with more waiting jobs is not read together: each of them has its own turn.
TOGETHER = TURNS_A_SECOND

Watched = JobRoom | ScopeRoom


class Turns:
    def __init__(
        self, jobs: Mapping[WatchedJob, JobRoom], scopes: Mapping[Scope, ScopeRoom]
    ) -> None:
        self._jobs = jobs
        self._scopes = scopes
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int, Watched, WatchedJob]] = []
        self._count = itertools.count()
        self._taken_at = self._loop.time()
        self._left = 0.0

    def push(self, room: Watched, job: WatchedJob, mark: str, since: float | None = None) -> None:
        since = self._loop.time() if since is None else since
        due = since + (QUEUED_SECONDS if mark else OTHERS_SECONDS)
        heapq.heappush(self._heap, (due, next(self._count), room, job))

    def take(self) -> list[tuple[Watched, list[WatchedJob]]]:
        """The jobs whose turn it is together, as many as TURNS_A_SECOND allows by now."""
        now = self._loop.time()
        earned = (now - self._taken_at) * TURNS_A_SECOND
        left = min(TURNS_A_SECOND, self._left + earned)
        self._taken_at = now
        taken: list[tuple[Watched, list[WatchedJob]]] = []
        while self._heap and left >= 1 and self._heap[0][0] <= now:
            _, _, room, job = heapq.heappop(self._heap)
            mark = self._mark_of(room, job)
            if mark is None:
                continue
            group = [job]
            if (
                mark
                and isinstance(room, ScopeRoom)
                and len(waiting := waiting_in(room)) <= TOGETHER
            ):
                if now < room.placed_at + QUEUED_SECONDS:
                    self.push(room, job, mark, room.placed_at)
                    continue
                if len(waiting) > left:
                    self.push(room, job, mark, now - QUEUED_SECONDS)  # due in the next look
                    break
                group = waiting
                room.placed_at = now
            left -= len(group)
            taken.append((room, group))
            self.push(room, job, mark)
        self._left = left
        return taken

    def find_moved(
        self, changes: Iterable[tuple[ScopeRoom, Sequence[UUID]]], *, most: int
    ) -> dict[ScopeRoom, list[WatchedJob]]:
        """The other waiting jobs of scopes in which one has come or left: they moved with it."""
        moved = {}
        for room, changed in changes:
            if all(_was_started(room, job) for job in changed):
                continue
            with_them = set(changed)
            waiting = [job for job in waiting_in(room) if job.id not in with_them]
            if len(waiting) <= min(TOGETHER, most):
                moved[room] = waiting
                most -= len(waiting)
                room.placed_at = self._loop.time()
        return moved

    def _mark_of(self, room: Watched, job: WatchedJob) -> str | None:
        """What was sent of it last; None: nobody watches it any more."""
        if isinstance(room, JobRoom):
            mark: str = room.print[1]
            return mark if self._jobs.get(job) is room and not room.final else None
        known = room.known.get(job.id) if self._scopes.get(room.scope) is room else None
        return known[1] if known is not None else None


def waiting_in(room: ScopeRoom) -> list[WatchedJob]:
    """Its jobs that were sent with a position, or with a reason why they wait."""
    public = room.scope.public
    return [WatchedJob(job, public) for job, (_, mark, _) in room.known.items() if mark]


def _was_started(room: ScopeRoom, job: UUID) -> bool:
    """Whether it had no position before: that it changes moves nobody."""
    return job in room.known and not room.known[job][1]
