"""Scopes: the jobs of a topic or an account as one feed, and the search for changed ones.

A new watcher is sent a snapshot of all live jobs, and then each change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from penstock.engine.queries.events import Events, JobState, Scope, ScopeState, WatchedJob
from penstock.http.live.feeds import (
    FINAL,
    Feed,
    Log,
    Watcher,
    encode,
    fingerprint,
    is_heartbeat,
)

# A scope with more live jobs than this sends no snapshot: clients read the list page by page.
MOST_JOBS = 1_000
SNAPSHOT_BYTES = 8 * 1_048_576
# How long a snapshot is kept for the next client: after a restart all clients reconnect at once.
KEPT_SECONDS = 10.0
# A snapshot older than this is read again, because it contains recently finished jobs.
FRESH_SECONDS = 60.0
# A snapshot also contains the jobs that finished within this time.
RECENT = timedelta(minutes=5)
# A job that started and finished between two polls is found among the newest jobs of its scope:
# those submitted within this time. It is long, since a submit's transaction may stay open a while.
MARGIN = timedelta(minutes=10)
# How many jobs one poll reads for snapshots: the limit keeps other watchers from waiting longer.
SNAPSHOT_JOBS = 2_000

RESYNC = b"event: resync\ndata: {}\n\n"


class ScopeLog(Log[Any]):
    """The last events of a scope, numbered; only the newest of each job is sent."""

    def __init__(self) -> None:
        super().__init__(None)
        self._joined: dict[int, bytes] = {}
        self.end = 0

    def add(self, key: Any, event: bytes) -> None:
        self._joined.clear()
        self.end += 1
        super().add(key, event)

    def trim(self, before: int) -> None:
        """Drop the events before this number, which were sent to all watchers."""
        self._joined.clear()
        while self.entries and self.end - len(self.entries) < before:
            self.drop_oldest()

    def since(self, number: int) -> bytes | None:
        """Return the newest event of each job from this number on; None: not all are kept."""
        first = self.end - len(self.entries)
        if number < first:
            return None
        # Thousands of watchers may be at the same number: join the events once for all of them.
        events = self._joined.get(number)
        if events is None:
            newest = dict(list(self.entries)[number - first :])
            events = self._joined[number] = b"".join(newest.values())
        return events


class ScopeFeed(Feed):
    """The jobs of a topic or an account: a snapshot for new watchers, and then the changes."""

    def __init__(self, on_empty: Callable[[], object], scope: Scope) -> None:
        super().__init__(on_empty)
        self.scope = scope
        self.fingerprint: int | None = None
        """As of the last poll; None: there was no poll yet."""
        self.live: Mapping[UUID, int] = {}
        self.started: Mapping[UUID, int] = {}
        self.published: dict[UUID, tuple[int, str, int | None]] = {}
        self.log = ScopeLog()
        self.account = b""
        """The event with the account's balance, if an account is watched."""
        self.snapshot_wanted_at: float | None = None
        """When a watcher first asked for a snapshot that was not read yet."""
        self.positions_read_at = 0.0
        """When the positions of all waiting jobs were last read together."""
        self._finished: dict[UUID, None] = {}
        self._running: dict[UUID, bytes] = {}
        """The last event of up to MOST_JOBS running jobs, to recognize heartbeats."""
        self._texts: dict[UUID, bytes] | None = None
        self._snapshot: bytes | None = None
        self._cut = False
        self._read_at = 0.0
        self._used_at = 0.0

    def changed(self, live: Mapping[UUID, int], finished: Sequence[UUID]) -> list[UUID]:
        """Return the jobs that must be read, given the results of a poll."""
        published = self.published
        jobs = [job for job, version in live.items() if published.get(job, _NONE)[0] != version]
        jobs += [job for job in published if job not in live]
        if self.fingerprint is not None:  # otherwise all these finished before the first watcher
            jobs += [job for job in finished if job not in self._finished and job not in published]
        return jobs

    def adopt(self, state: ScopeState | None, started: Mapping[UUID, int]) -> None:
        """Remember what was published. A finished job does not change again."""
        if state is not None:
            self.fingerprint, self.live = state.fingerprint, state.live
            self._finished.update(dict.fromkeys(state.finished))
            while len(self._finished) > 3 * MOST_JOBS:
                del self._finished[next(iter(self._finished))]
        self.started = started
        present = {**started, **self.live}
        self.published = {
            job: self.published.get(job, (version, "", None)) for job, version in present.items()
        }
        self._running = {job: body for job, body in self._running.items() if job in present}

    def snapshot(self, now: float) -> bytes | None:
        """Return the snapshot for a new watcher; None: it must be read first."""
        self._used_at = now
        if self._texts is None or now - self._read_at > FRESH_SECONDS:
            self.snapshot_wanted_at = self.snapshot_wanted_at or now
            return None
        if self._snapshot is None:
            events = [self._texts[job] for job in sorted(self._texts)]
            too_large = len(events) > MOST_JOBS or sum(map(len, events)) > SNAPSHOT_BYTES
            if self._cut or too_large:
                events = [RESYNC]
            self._snapshot = self.account + b"".join(events)
        return self._snapshot

    def begin_snapshot(self, now: float, finished: Iterable[UUID], *, cut: bool) -> None:
        """Begin a snapshot: the jobs published next are all of it, unless it is `cut`.

        `finished`: these jobs are in the snapshot only; they are not sent to other watchers.
        """
        self._texts, self._read_at = {}, now
        self._cut, self._snapshot, self.snapshot_wanted_at = cut, None, None
        self._finished.update(dict.fromkeys(finished))

    def publish(self, job: JobState, body: bytes) -> bool:
        """Publish a job if it changed; return whether it is live and was not published before."""
        if self._texts is not None and self._texts.get(job.id) != body:
            self._texts[job.id] = body
            self._snapshot = None
        new_fingerprint = fingerprint(job)
        if self.published.get(job.id) == new_fingerprint or job.id in self._finished:
            return False
        if not is_heartbeat(self._running.pop(job.id, b""), body):
            self.log.add(job.id, body)
        if job.status == "running" and len(self._running) < MOST_JOBS:
            self._running[job.id] = body
        if job.status in FINAL:
            self._finished[job.id] = None
            return False
        new = job.id not in self.published
        self.published[job.id] = new_fingerprint
        return new

    def publish_account(self, text: str) -> None:
        body = encode("account", text)
        if body != self.account:
            self.account = body
            self._snapshot = None
            self.log.add(None, body)

    def publish_resync(self) -> None:
        self.log.add(RESYNC, RESYNC)

    def trim(self, now: float) -> None:
        """Drop the events and the snapshot that watchers do not need any more."""
        self.log.trim(
            min(
                (watcher.at for watcher in self.watchers if isinstance(watcher, ScopeWatcher)),
                default=self.log.end,
            )
        )
        if self._texts is not None and now - self._used_at > KEPT_SECONDS:
            self._texts = self._snapshot = None


class ScopeWatcher(Watcher[ScopeFeed]):
    __slots__ = ("_has_snapshot", "at")

    def __init__(self, feed: ScopeFeed, **caller: Any) -> None:
        super().__init__(feed, **caller)
        self._has_snapshot = False
        self.at = feed.log.end

    async def events(self) -> bytes:
        log = self._feed.log
        if not self._has_snapshot:
            snapshot = self._feed.snapshot(self._loop.time())
            self.at = log.end
            if snapshot is None:
                return b""
            self._has_snapshot = True
            return snapshot
        if self.at == log.end:
            return b""
        events = log.since(self.at)
        self.at = log.end
        return RESYNC if events is None else events


@dataclass(slots=True)
class ScopeChange:
    """What a poll has found for one scope."""

    feed: ScopeFeed
    state: ScopeState | None = None
    started: dict[UUID, int] = field(default_factory=dict)
    changed: list[UUID] = field(default_factory=list)
    snapshot: list[UUID] | None = None
    """All jobs of the snapshot, if one is wanted."""
    finished: list[UUID] = field(default_factory=list)
    """The finished jobs of the snapshot."""
    cut: bool = False

    @property
    def live(self) -> Mapping[UUID, int]:
        return self.feed.live if self.state is None else self.state.live

    def watched(self, jobs: Iterable[UUID]) -> list[WatchedJob]:
        return [WatchedJob(job, self.feed.scope.public) for job in jobs]

    def publish(
        self,
        now: float,
        jobs: Mapping[WatchedJob, JobState],
        bodies: Mapping[WatchedJob, bytes],
        accounts: Mapping[str, str],
    ) -> list[WatchedJob]:
        """Publish the change; return the live jobs that were not published before."""
        feed, account = self.feed, self.feed.scope.account
        if feed.scope.topic is None and account is not None:
            if account not in accounts:
                feed.close()  # erased
                return []
            feed.publish_account(accounts[account])
        first_poll = feed.fingerprint is None
        if self.snapshot is not None:
            known = set(self.changed)
            finished = [job for job in self.finished if job not in known]
            feed.begin_snapshot(now, finished, cut=self.cut)
        too_many = len(self.changed) > MOST_JOBS
        if too_many and not first_poll:
            feed.publish_resync()
        changed = [] if too_many else self.watched(self.changed)
        ids = dict.fromkeys([*changed, *self.watched(self.snapshot or ())])
        new = [job for job in ids if job in jobs and feed.publish(jobs[job], bodies[job])]
        feed.adopt(self.state, self.started)
        feed.wake()
        return new


async def find_changes(
    events: Events, feeds: Sequence[ScopeFeed]
) -> tuple[list[ScopeChange], bool]:
    """Find the changes of these scopes, and whether a snapshot is left for the next poll."""
    changes = [ScopeChange(feed) for feed in feeds]
    states = await events.changed_scopes(
        [feed.scope for feed in feeds],
        [feed.fingerprint for feed in feeds],
        margin=MARGIN,
        most=MOST_JOBS + 1,
    )
    for state in states:
        changes[state.n].state = state
    await _find_started(events, changes)
    has_more = await _find_snapshots(events, changes)
    for change in changes:
        if change.state is not None or change.started != change.feed.started:
            finished = change.state.finished if change.state is not None else []
            change.changed = change.feed.changed({**change.live, **change.started}, finished)
    return [
        change
        for change in changes
        if change.state is not None or change.changed or change.snapshot is not None
    ], has_more


async def _find_started(events: Events, changes: Sequence[ScopeChange]) -> None:
    """Find the running jobs of scopes with too many live jobs: only the newest ones are known."""
    large = [change for change in changes if len(change.live) > MOST_JOBS]
    if large:
        for n, job, version in await events.running_jobs([change.feed.scope for change in large]):
            large[n].started[job] = version


async def _find_snapshots(events: Events, changes: Sequence[ScopeChange]) -> bool:
    """Find the jobs of wanted snapshots, oldest request first; return whether some are left."""
    wanted = [change for change in changes if change.feed.snapshot_wanted_at is not None]
    wanted.sort(key=lambda change: change.feed.snapshot_wanted_at or 0.0)
    chosen: list[ScopeChange] = []
    count = 0
    for change in wanted:
        if count >= SNAPSHOT_JOBS:
            break
        chosen.append(change)
        count += len(change.live)
    if chosen:
        recent = await events.recently_finished(
            [change.feed.scope for change in chosen], since=RECENT, most=MOST_JOBS
        )
        for n, change in enumerate(chosen):
            change.finished, more = recent.get(n, ([], False))
            live = change.live
            change.cut = more or len(live) + len(change.finished) > MOST_JOBS
            change.snapshot = [] if change.cut else [*live, *change.finished]
    return len(chosen) < len(wanted)


_NONE: tuple[None, None, None] = (None, None, None)
