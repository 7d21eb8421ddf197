"""One poll: find the changes of everything watched, read each once, publish it to the feeds.

Nothing is published before everything was read, so a failed poll is repeated as a whole.

Position, ETA and staleness change without a new version of the job. So they are refreshed, that is,
read again every few seconds. A job that is watched alone is refreshed separately. The waiting jobs
of a scope are refreshed together, and also whenever one of them joins or leaves the queue: one
statement reads all their positions, so no two jobs of a list show the same one.
"""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from penstock.engine.queries.events import BATCH_ITEMS, Chunk, Events, JobState, Scope, WatchedJob
from penstock.errors import NotFound
from penstock.http.live.feeds import (
    FINAL,
    BatchFeed,
    Chunks,
    Cursor,
    JobFeed,
    Watcher,
    encode,
    fingerprint,
)
from penstock.http.live.scopes import ScopeChange, ScopeFeed, find_changes

# Reading a position takes longer than reading the rest of a job. One poll reads this many at most;
# later refreshes read the other positions.
POSITIONS_PER_POLL = 500
JOB_PAGE = 250
CHUNK_PAGE = 200
CHUNK_ROUNDS = 10
BATCH_SECONDS = 0.25
BATCH_REFRESH_SECONDS = 3.0
# The pause after a batch was read, as a multiple of the time the read took.
BATCH_PAUSE_FACTOR = 4

QUEUED_REFRESH_SECONDS = 2.5
REFRESH_SECONDS = 5.0
# How many jobs are refreshed per second.
REFRESHES_PER_SECOND = 200
# The waiting jobs of a scope with more than this are refreshed one by one.
REFRESHED_TOGETHER = REFRESHES_PER_SECOND

Refreshed = JobFeed | ScopeFeed


class Poller:
    def __init__(
        self,
        events: Events,
        jobs: Mapping[WatchedJob, JobFeed],
        batches: Mapping[WatchedJob, BatchFeed],
        scopes: Mapping[Scope, ScopeFeed],
        close_withdrawn: Callable[[Iterable[Watcher[Any]]], Awaitable[None]],
    ) -> None:
        """`close_withdrawn` closes the given watchers whose grants were withdrawn."""
        self._close_withdrawn = close_withdrawn
        self._events = events
        self._jobs = jobs
        self._batches = batches
        self._scopes = scopes
        self._loop = asyncio.get_running_loop()
        self._refreshes = Refreshes(jobs, scopes)
        self.has_more = False
        """Some changes are left for the next poll."""

    async def poll(self) -> float:
        """Publish all changes; return the seconds it took to find them, without reading them."""
        self.has_more = False
        begun = self._loop.time()
        jobs = await self._changed_jobs()
        changes: list[ScopeChange] = []
        if self._scopes:
            changes, self.has_more = await find_changes(self._events, list(self._scopes.values()))
        took = self._loop.time() - begun
        due = self._refreshes.take_due()
        positions = dict.fromkeys([*jobs, *(job for _, group in due for job in group)])
        moved = self._refreshes.find_moved(changes, most=POSITIONS_PER_POLL - len(positions))
        positions |= dict.fromkeys(job for group in moved.values() for job in group)
        others = [
            job
            for change in changes
            for job in change.watched([*change.changed, *(change.snapshot or ())])
        ]
        states = await self._read(
            list(dict.fromkeys([*positions, *others])),
            positions=min(len(positions), POSITIONS_PER_POLL),
        )
        if moved:
            took = self._loop.time() - begun
        chunks = await self._read_new_chunks(jobs)
        accounts = await self._read_accounts(changes)
        # After all reads: the account may have been erased and created again under the same name.
        of_accounts = [change.feed for change in changes if change.feed.scope.account is not None]
        await self._close_withdrawn(itertools.chain(*(feed.watchers for feed in of_accounts)))
        # From here to the batches there is no `await`.
        bodies = {job: encode("job", state.text) for job, state in states.items()}
        for job, feed in jobs.items():
            if job in states:
                self._publish_job(feed, job, states[job], bodies[job], chunks[job])
            else:
                feed.close()  # pruned, or erased
        for refreshed, group in due:
            _publish_refresh(refreshed, group, states, bodies)
        for change in changes:
            for job in change.publish(self._loop.time(), states, bodies, accounts):
                self._refreshes.add(change.feed, job, states[job].mark)
        for scope, group in moved.items():
            _publish_refresh(scope, group, states, bodies)
        await self._poll_batches()
        return took

    async def read_chunks(self, after: Sequence[tuple[UUID, Cursor]]) -> list[Chunks]:
        """Read a page of chunks of each job."""
        pages = await self._events.read_chunks(
            [(job, *cursor) for job, cursor in after], most=CHUNK_PAGE
        )
        return [[_encode_chunk(chunk) for chunk in page] for page in pages]

    async def _changed_jobs(self) -> dict[WatchedJob, JobFeed]:
        feeds = {job: feed for job, feed in self._jobs.items() if not feed.final}
        if not feeds:
            return {}
        versions = [feed.version for feed in feeds.values()]
        changed = set(await self._events.changed_jobs([job.id for job in feeds], versions))
        return {job: feed for job, feed in feeds.items() if job.id in changed or feed.chunks_due}

    async def _read_new_chunks(
        self, feeds: Mapping[WatchedJob, JobFeed]
    ) -> dict[WatchedJob, tuple[Cursor | None, Chunks | None]]:
        """Read each feed's cursor and the chunks after it; None: too many chunks for one poll."""
        chunks: dict[WatchedJob, Chunks] = {job: [] for job in feeds}
        cursors = {job: feed.cursor for job, feed in feeds.items()}
        unread = {job: cursor for job, cursor in cursors.items() if cursor is not None}
        for _ in range(CHUNK_ROUNDS):
            if not unread:
                break
            pages = await self.read_chunks([(job.id, cursor) for job, cursor in unread.items()])
            full: dict[WatchedJob, Cursor] = {}
            for job, page in zip(unread, pages, strict=True):
                chunks[job] += page
                if len(page) == CHUNK_PAGE:
                    full[job] = page[-1][0]
            unread = full
        return {job: (cursors[job], None if job in unread else chunks[job]) for job in feeds}

    def _publish_job(
        self,
        feed: JobFeed,
        job: WatchedJob,
        state: JobState,
        body: bytes,
        chunks: tuple[Cursor | None, Chunks | None],
    ) -> None:
        cursor, new_chunks = chunks
        if feed.cursor != cursor:
            # A watcher joined during the reads, perhaps with an earlier cursor: leave the job to
            # the next poll.
            feed.chunks_due = self.has_more = True
            return
        if new_chunks is None:
            feed.drop_chunks()
        feed.chunks_due = False
        feed.publish_chunks(new_chunks or [])
        if feed.updates == 0:
            self._refreshes.add(feed, job, state.mark)
        _publish_state(feed, state, body)
        feed.wake()

    async def _read_accounts(self, changes: Iterable[ScopeChange]) -> dict[str, str]:
        scopes = [change.feed.scope for change in changes]
        names = {
            scope.account for scope in scopes if scope.topic is None and scope.account is not None
        }
        return await self._events.read_balances(sorted(names)) if names else {}

    async def _read(
        self, jobs: Sequence[WatchedJob], *, positions: int
    ) -> dict[WatchedJob, JobState]:
        """Read each job as its watchers may see it; the first `positions` jobs with position."""
        states: dict[WatchedJob, JobState] = {}
        for public in (False, True):
            ids = [job.id for job in jobs if job.public is public]
            counted = sum(job.public is public for job in jobs[:positions])
            for at in range(0, len(ids), JOB_PAGE):
                page = ids[at : at + JOB_PAGE]
                # The first jobs of a list have their position, too.
                least = min(REFRESHES_PER_SECOND, JOB_PAGE) if at == 0 else 0
                for state in await self._events.read_jobs(
                    page, positions=max(counted - at, least), public=public
                ):
                    states[WatchedJob(state.id, public)] = state
        return states

    async def _poll_batches(self) -> None:
        now = self._loop.time()
        feeds = {batch: feed for batch, feed in self._batches.items() if feed.not_before <= now}
        if not feeds:
            return
        fingerprints = await self._events.batch_fingerprints(list({batch.id for batch in feeds}))
        for batch, feed in feeds.items():
            current = fingerprints.get(batch.id, 0)
            if feed.fingerprint == current and (not current or feed.refresh_at > now):
                continue
            begun = self._loop.time()
            try:
                text = await self._events.read_batch(batch.id, public=batch.public)
            except NotFound:
                feed.close()
                continue
            now = self._loop.time()
            feed.not_before = now + max(BATCH_SECONDS, BATCH_PAUSE_FACTOR * (now - begun))
            feed.refresh_at = now + BATCH_REFRESH_SECONDS
            feed.fingerprint = current
            feed.publish_state(encode("batch", text), jobs=BATCH_ITEMS)


def _publish_state(feed: JobFeed, state: JobState, body: bytes) -> None:
    new = fingerprint(state)
    if new != feed.fingerprint:
        feed.fingerprint = new
        final = state.status in FINAL
        feed.publish(body, version=state.version, attempt=state.attempt, final=final)


def _publish_refresh(
    feed: Refreshed,
    group: Sequence[WatchedJob],
    states: Mapping[WatchedJob, JobState],
    bodies: Mapping[WatchedJob, bytes],
) -> None:
    """Publish changes without a new version; of a scope, all positions or none."""
    jobs = [job for job in group if job in states]
    if isinstance(feed, JobFeed):
        # A new version is left to the next poll, which also reads its chunks.
        for job in jobs:
            if states[job].version == feed.version:
                _publish_state(feed, states[job], bodies[job])
    # A finished job is left to the next poll, too. A job that has started is published together
    # with the jobs that moved up because of it.
    elif all(states[job].status not in FINAL for job in jobs):
        for job in jobs:
            feed.publish(states[job], bodies[job])
        feed.wake()


def _encode_chunk(chunk: Chunk) -> tuple[Cursor, bytes]:
    data = f'{{"attempt": {chunk.attempt}, "seq": {chunk.seq}, "data": {chunk.data}}}'
    return (chunk.attempt, chunk.seq), encode("chunk", data)


class Refreshes:
    """The schedule by which watched jobs are refreshed."""

    def __init__(
        self, jobs: Mapping[WatchedJob, JobFeed], scopes: Mapping[Scope, ScopeFeed]
    ) -> None:
        self._jobs = jobs
        self._scopes = scopes
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int, Refreshed, WatchedJob]] = []
        self._count = itertools.count()
        self._taken_at = self._loop.time()
        self._left = 0.0

    def add(self, feed: Refreshed, job: WatchedJob, mark: str, since: float | None = None) -> None:
        since = self._loop.time() if since is None else since
        due = since + (QUEUED_REFRESH_SECONDS if mark else REFRESH_SECONDS)
        heapq.heappush(self._heap, (due, next(self._count), feed, job))

    def take_due(self) -> list[tuple[Refreshed, list[WatchedJob]]]:
        """Take the due jobs, in groups, as many as REFRESHES_PER_SECOND allows by now."""
        now = self._loop.time()
        earned = (now - self._taken_at) * REFRESHES_PER_SECOND
        left = min(REFRESHES_PER_SECOND, self._left + earned)
        self._taken_at = now
        taken: list[tuple[Refreshed, list[WatchedJob]]] = []
        while self._heap and left >= 1 and self._heap[0][0] <= now:
            _, _, feed, job = heapq.heappop(self._heap)
            mark = self._mark_of(feed, job)
            if mark is None:
                continue
            group = [job]
            if (
                mark
                and isinstance(feed, ScopeFeed)
                and len(waiting := waiting_in(feed)) <= REFRESHED_TOGETHER
            ):
                if now < feed.positions_read_at + QUEUED_REFRESH_SECONDS:
                    self.add(feed, job, mark, feed.positions_read_at)
                    continue
                if len(waiting) > left:
                    self.add(feed, job, mark, now - QUEUED_REFRESH_SECONDS)  # due at the next poll
                    break
                group = waiting
                feed.positions_read_at = now
            left -= len(group)
            taken.append((feed, group))
            self.add(feed, job, mark)
        self._left = left
        return taken

    def find_moved(
        self, changes: Iterable[ScopeChange], *, most: int
    ) -> dict[ScopeFeed, list[WatchedJob]]:
        """The waiting jobs of scopes in which a job joined or left the queue: they moved."""
        moved = {}
        for feed, jobs in ((change.feed, change.changed) for change in changes):
            if all(_was_started(feed, job) for job in jobs):
                continue
            changed = set(jobs)
            waiting = [job for job in waiting_in(feed) if job.id not in changed]
            if len(waiting) <= min(REFRESHED_TOGETHER, most):
                moved[feed] = waiting
                most -= len(waiting)
                feed.positions_read_at = self._loop.time()
        return moved

    def _mark_of(self, feed: Refreshed, job: WatchedJob) -> str | None:
        """Return the mark that was published last; None: the job is not watched any more."""
        if isinstance(feed, JobFeed):
            mark: str = feed.fingerprint[1]
            return mark if self._jobs.get(job) is feed and not feed.final else None
        if self._scopes.get(feed.scope) is not feed or job.id not in feed.published:
            return None
        return feed.published[job.id][1]


def waiting_in(feed: ScopeFeed) -> list[WatchedJob]:
    """Return the jobs that were published with a position or with a reason for waiting."""
    public = feed.scope.public
    return [WatchedJob(job, public) for job, (_, mark, _) in feed.published.items() if mark]


def _was_started(feed: ScopeFeed, job: UUID) -> bool:
    """Whether the job had no position before: then its change moves no other job."""
    return job in feed.published and not feed.published[job][1]
