"""One look: what changed of what is watched is found, read once, and told to its rooms.

Nothing is told before all of it was read: a look that breaks off is done again as a whole.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from penstock.engine.queries.events import Emitted, Events, Glance, Scope, Seen, WatchedJob
from penstock.errors import NotFound
from penstock.http.live.refresh import TURNS_A_SECOND, Turns
from penstock.http.live.subscriptions import (
    FINAL,
    MOST_JOBS,
    BatchRoom,
    Chunks,
    Cursor,
    JobRoom,
    ScopeRoom,
    print_of,
)
from penstock.http.live.watchers import Watcher, encode

# What ended so long ago is told to who comes.
RECENT = timedelta(minutes=5)
# A job that began and ended between two looks is found among the newest of its scope: those that
# were submitted in this time, by transactions that may have been open for a while.
MARGIN = timedelta(minutes=10)
# To count a place takes longer than the rest of a job: of more than these it is told in turns.
PLACES_A_LOOK = 500
# How many jobs are read for who comes, in one look; then who watches already has a turn.
SNAPSHOT_JOBS = 2_000
JOB_PAGE = 250
CHUNK_PAGE = 200
CHUNK_ROUNDS = 10
BATCH_SECONDS = 0.25
BATCH_AGAIN_SECONDS = 3.0
# The rest of a large batch after it was read, as a multiple of the time that took.
BATCH_REST = 4


@dataclass(slots=True)
class _Plan:
    """What a look has found of one scope."""

    room: ScopeRoom
    glance: Glance | None = None
    started: Mapping[UUID, int] = field(default_factory=dict)
    changed: list[UUID] = field(default_factory=list)
    shown: list[UUID] | None = None
    """All there is to show, where somebody came."""
    ended: list[UUID] = field(default_factory=list)
    cut: bool = False


class Looks:
    def __init__(
        self,
        events: Events,
        jobs: Mapping[WatchedJob, JobRoom],
        batches: Mapping[WatchedJob, BatchRoom],
        scopes: Mapping[Scope, ScopeRoom],
        close_over: Callable[[Iterable[Watcher]], Awaitable[None]],
    ) -> None:
        """`close_over` closes those of these watchers whose tokens are over."""
        self._close_over = close_over
        self._events = events
        self._jobs = jobs
        self._batches = batches
        self._scopes = scopes
        self._loop = asyncio.get_running_loop()
        self._turns = Turns(jobs, scopes)
        self.unfinished = False
        """Somebody still waits for what was too much for one look."""

    async def look(self) -> float:
        """How long it took to find what has changed, without reading it."""
        self.unfinished = False
        begun = self._loop.time()
        jobs = await self._find_jobs()
        plans = await self._find_scopes()
        took = self._loop.time() - begun
        turns = self._turns.take()
        first = dict.fromkeys([*jobs, *(job for _, group in turns for job in group)])
        moved = self._turns.find_moved(
            [(plan.room, plan.changed) for plan in plans], most=PLACES_A_LOOK - len(first)
        )
        first |= dict.fromkeys(job for group in moved.values() for job in group)
        rest = [
            WatchedJob(job, plan.room.scope.public)
            for plan in plans
            for job in (*plan.changed, *(plan.shown or ()))
        ]
        places = min(len(first), PLACES_A_LOOK)
        seen = await self._read(list(dict.fromkeys([*first, *rest])), places=places)
        if moved:
            took = self._loop.time() - begun
        chunks = await self._read_new_chunks(jobs)
        accounts = await self._read_accounts(plans)
        # After all was read: the account of a scope may be another of the same name by now.
        of_accounts = [plan.room for plan in plans if plan.room.scope.account is not None]
        await self._close_over(itertools.chain(*(room.watchers for room in of_accounts)))
        # From here on nothing waits.
        bodies = {job: encode("job", one.text) for job, one in seen.items()}
        for job, room in jobs.items():
            if job in seen:
                self._tell_job(room, job, seen[job], bodies[job], chunks[job])
            else:
                room.end()  # pruned, or erased
        for turn, group in turns:
            self._tell_turn(turn, [job for job in group if job in seen], seen, bodies)
        for plan in plans:
            self._tell_scope(plan, seen, bodies, accounts)
        for scope, group in moved.items():
            self._tell_turn(scope, [job for job in group if job in seen], seen, bodies)
        await self._look_at_batches()
        return took

    # --- jobs ------------------------------------------------------------------------------------

    async def _find_jobs(self) -> dict[WatchedJob, JobRoom]:
        rooms = {job: room for job, room in self._jobs.items() if not room.final}
        if not rooms:
            return {}
        versions = [room.version for room in rooms.values()]
        changed = set(await self._events.look_at_jobs([job.id for job in rooms], versions))
        return {job: room for job, room in rooms.items() if job.id in changed or room.chunks_due}

    async def _read_new_chunks(
        self, rooms: Mapping[WatchedJob, JobRoom]
    ) -> dict[WatchedJob, tuple[Cursor | None, Chunks | None]]:
        """From where, and what came since; None: there is more than can be read now."""
        chunks: dict[WatchedJob, Chunks] = {job: [] for job in rooms}
        began = {job: room.cursor for job, room in rooms.items()}
        at = {job: cursor for job, cursor in began.items() if cursor is not None}
        for _ in range(CHUNK_ROUNDS):
            if not at:
                break
            pages = await self.read_chunks([(job.id, cursor) for job, cursor in at.items()])
            full: dict[WatchedJob, Cursor] = {}
            for job, page in zip(at, pages, strict=True):
                chunks[job] += page
                if len(page) == CHUNK_PAGE:
                    full[job] = page[-1][0]
            at = full
        return {job: (began[job], None if job in at else chunks[job]) for job in rooms}

    async def read_chunks(self, after: Sequence[tuple[UUID, Cursor]]) -> list[Chunks]:
        """A page of each."""
        pages = await self._events.read_chunks(
            [(job, *cursor) for job, cursor in after], most=CHUNK_PAGE
        )
        return [[chunk_of(one) for one in page] for page in pages]

    def _tell_job(
        self,
        room: JobRoom,
        job: WatchedJob,
        seen: Seen,
        body: bytes,
        chunks: tuple[Cursor | None, Chunks | None],
    ) -> None:
        since, new = chunks
        if room.cursor != since:
            # Somebody joined meanwhile, perhaps from further back: that is for the next look.
            room.chunks_due = self.unfinished = True
            return
        if new is None:
            room.rejoin()
        room.chunks_due = False
        room.tell_chunks(new or [])
        if room.told == 0:
            self._turns.push(room, job, seen.mark)
        self._tell_state(room, seen, body)
        room.wake()

    def _tell_state(self, room: JobRoom, seen: Seen, body: bytes) -> None:
        told = print_of(seen)
        if told != room.print:
            room.print = told
            room.tell(
                body,
                version=seen.version,
                attempt=seen.attempt,
                final=seen.status in FINAL,
            )

    # --- scopes ----------------------------------------------------------------------------------

    async def _find_scopes(self) -> list[_Plan]:
        rooms = list(self._scopes.values())
        if not rooms:
            return []
        plans = {room: _Plan(room, started=room.started) for room in rooms}
        glances = await self._events.look_at_scopes(
            [room.scope for room in rooms],
            [room.print for room in rooms],
            margin=MARGIN,
            most=MOST_JOBS + 1,
        )
        for glance in glances:
            plans[rooms[glance.n]].glance = glance
        await self._find_started(list(plans.values()))
        await self._find_snapshots(list(plans.values()))
        for plan in plans.values():
            if plan.glance is not None or plan.started != plan.room.started:
                ended = plan.glance.ended if plan.glance is not None else []
                plan.changed = plan.room.changed({**_live(plan), **plan.started}, ended)
        return [
            plan
            for plan in plans.values()
            if plan.glance is not None or plan.changed or plan.shown is not None
        ]

    async def _find_started(self, plans: Sequence[_Plan]) -> None:
        large = [plan for plan in plans if len(_live(plan)) > MOST_JOBS]
        for plan in plans:
            plan.started = {}
        if large:
            started: list[dict[UUID, int]] = [{} for _ in large]
            rows = await self._events.look_at_started([plan.room.scope for plan in large])
            for n, job, version in rows:
                started[n][job] = version
            for plan, found in zip(large, started, strict=True):
                plan.started = found

    async def _find_snapshots(self, plans: Sequence[_Plan]) -> None:
        """For who came, longest waiting first, as far as one look can read."""
        waiting = [plan for plan in plans if plan.room.wanted_at is not None]
        waiting.sort(key=lambda plan: plan.room.wanted_at or 0.0)
        chosen: list[_Plan] = []
        count = 0
        for plan in waiting:
            if count >= SNAPSHOT_JOBS:
                self.unfinished = True
                break
            chosen.append(plan)
            count += len(_live(plan))
        if not chosen:
            return
        recent = await self._events.recent(
            [plan.room.scope for plan in chosen], since=RECENT, most=MOST_JOBS
        )
        for n, plan in enumerate(chosen):
            ended, more = recent.get(n, ([], False))
            live = _live(plan)
            plan.cut = more or len(live) + len(ended) > MOST_JOBS
            plan.ended = ended
            plan.shown = [] if plan.cut else [*live, *ended]

    async def _read_accounts(self, plans: Iterable[_Plan]) -> dict[str, str]:
        names = {
            plan.room.scope.account
            for plan in plans
            if plan.room.scope.topic is None and plan.room.scope.account is not None
        }
        return await self._events.read_balances(sorted(names)) if names else {}

    def _tell_scope(
        self,
        plan: _Plan,
        seen: Mapping[WatchedJob, Seen],
        bodies: Mapping[WatchedJob, bytes],
        accounts: Mapping[str, str],
    ) -> None:
        room, account = plan.room, plan.room.scope.account
        if room.scope.topic is None and account is not None:
            if account not in accounts:
                room.end()  # erased
                return
            room.tell_account(accounts[account])
        fresh = room.print is None
        if plan.shown is not None:
            news = set(plan.changed)
            room.begin_snapshot(
                self._loop.time(), [job for job in plan.ended if job not in news], cut=plan.cut
            )
        many = len(plan.changed) > MOST_JOBS
        if many and not fresh:
            room.tell_resync()
        for found in dict.fromkeys([*(() if many else plan.changed), *(plan.shown or ())]):
            job = WatchedJob(found, room.scope.public)
            if job in seen and room.tell(seen[job], bodies[job]):
                self._turns.push(room, job, seen[job].mark)
        room.adopt(plan.glance, plan.started)
        room.wake()

    # --- turns -----------------------------------------------------------------------------------

    def _tell_turn(
        self,
        room: JobRoom | ScopeRoom,
        group: Sequence[WatchedJob],
        seen: Mapping[WatchedJob, Seen],
        bodies: Mapping[WatchedJob, bytes],
    ) -> None:
        """Send what changed without a new version; a scope's positions all or none."""
        if isinstance(room, JobRoom):
            # A new version is for the next look, which knows what else belongs to it.
            for job in group:
                if seen[job].version == room.version:
                    self._tell_state(room, seen[job], bodies[job])
        # So is an end. One that has started since is sent with those that moved up for it.
        elif all(seen[job].status not in FINAL for job in group):
            for job in group:
                room.tell(seen[job], bodies[job])
            room.wake()

    # --- all -------------------------------------------------------------------------------------

    async def _read(self, jobs: Sequence[WatchedJob], *, places: int) -> dict[WatchedJob, Seen]:
        """Each as its watchers may see it; the first `places` with their place."""
        found: dict[WatchedJob, Seen] = {}
        for public in (False, True):
            ids = [job.id for job in jobs if job.public is public]
            counted = sum(job.public is public for job in jobs[:places])
            for at in range(0, len(ids), JOB_PAGE):
                page = ids[at : at + JOB_PAGE]
                # Of those that nobody asked for one by one, the first are told their place, too.
                least = min(TURNS_A_SECOND, JOB_PAGE) if at == 0 else 0
                for seen in await self._events.read_jobs(
                    page, places=max(counted - at, least), public=public
                ):
                    found[WatchedJob(seen.id, public)] = seen
        return found

    async def _look_at_batches(self) -> None:
        now = self._loop.time()
        rooms = {batch: room for batch, room in self._batches.items() if room.next_at <= now}
        if not rooms:
            return
        prints = await self._events.look_at_batches(list({batch.id for batch in rooms}))
        for batch, room in rooms.items():
            seen = prints.get(batch.id, 0)
            if room.print == seen and (not seen or room.again_at > now):
                continue
            begun = self._loop.time()
            try:
                text = await self._events.read_batch(batch.id, public=batch.public)
            except NotFound:
                room.end()
                continue
            now = self._loop.time()
            room.next_at = now + max(BATCH_SECONDS, BATCH_REST * (now - begun))
            room.again_at = now + BATCH_AGAIN_SECONDS
            room.print = seen
            room.tell(encode("batch", text))


def chunk_of(row: Emitted) -> tuple[Cursor, bytes]:
    data = f'{{"attempt": {row.attempt}, "seq": {row.seq}, "data": {row.data}}}'
    return (row.attempt, row.seq), encode("chunk", data)


def _live(plan: _Plan) -> Mapping[UUID, int]:
    return plan.room.live if plan.glance is None else plan.glance.live
