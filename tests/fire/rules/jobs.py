"""Rules 1 to 4: accepted jobs exist, have finished once, and failed only for their own faults."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from fire.logs import Ack
from fire.record import Job, Record
from penstock.failures.verdict import CLASSES, Fault

GRANT = "grant"
"""The kind of an ack about bought credits: its tag is the ref. Rule 7 checks those."""
LOST = {"lost", "stuck"}
ENDS = {"succeeded", "failed", "cancelled"}
# A lease, and the time for upkeep to act on it; a worker that notices late is lost later.
AFTERMATH_SECONDS = 30.0

_NOT_OURS = {Fault.PROVIDER, Fault.CREDENTIAL, Fault.CONFIG}


def accepted(record: Record) -> Iterator[str]:
    """1: each accepted request has exactly one job, refused and rolled back ones have none."""
    fates: dict[str, list[Ack]] = defaultdict(list)
    for ack in record.acks:
        if ack.retry_of is None and ack.kind != GRANT:
            fates[ack.tag].append(ack)
    for tag, acks in fates.items():
        if len(acks) > 1:
            yield f"tag {tag} was used by {len(acks)} requests: {acks}"
        yield from _has_its_job(acks[0], record)
    for job in record.rows:
        if job.retry_of is None and job.tag not in fates:
            yield f"{job}: no client has requested it"


def retried(record: Record) -> Iterator[str]:
    """1: the same for jobs that were retried by hand."""
    asked: dict[str, list[Ack]] = defaultdict(list)
    for ack in record.acks:
        if ack.retry_of is not None:
            asked[ack.retry_of].append(ack)
    found: dict[str, set[str]] = defaultdict(set)
    for job in record.rows:
        if job.retry_of is not None:
            found[job.retry_of].add(job.id)
    for old in asked.keys() | found.keys():
        yield from _has_its_retry(old, asked[old], found[old])


def _has_its_job(ack: Ack, record: Record) -> Iterator[str]:
    found = {job.id: job for job in record.by_tag.get(ack.tag, ()) if job.retry_of is None}
    match ack.fate:
        case "accepted":
            if ack.job is not None and ack.job not in found:
                yield f"job {ack.job} was accepted and is not there: {ack}"
            if len(found) != 1:
                yield f"tag {ack.tag} was accepted once and has {len(found)} jobs: {ack}"
        case "doubt":
            if len(found) > 1:
                yield f"tag {ack.tag} was asked for once and has {len(found)} jobs: {ack}"
        case "refused" | "rolled_back":
            if found:
                yield f"tag {ack.tag} was {ack.fate} and has jobs {list(found)}: {ack}"


def _has_its_retry(old: str, acks: list[Ack], found: set[str]) -> Iterator[str]:
    known = {ack.job for ack in acks if ack.fate == "accepted"}
    doubts = sum(ack.fate == "doubt" for ack in acks)
    if missing := known - found - {None}:
        yield f"retries {missing} of job {old} were accepted and are not there"
    if len(found - known) > doubts:
        yield f"job {old} has retries {found - known} that no client knows of"


def finished(record: Record) -> Iterator[str]:
    """2: after the quiet phase no work is left."""
    for job in record.rows:
        if job.live:
            yield f"{job} has not finished"
    if record.pending_on_finish:
        yield f"{record.pending_on_finish} on_finish callbacks have not run"


def once(record: Record) -> Iterator[str]:
    """3: one outcome, attempts numbered from 1 without a gap, and the last one's result is kept."""
    for id_, n in Counter(job.id for job in record.rows).items():
        if n > 1:
            yield f"job {id_} has {n} rows"
    starts = Counter((act.job, act.attempt) for act in record.acts if act.word == "start")
    for (id_, attempt), n in starts.items():
        if n > 1:
            yield f"attempt {attempt} of job {id_} was started {n} times"
        if (id_, attempt) not in record.settled:
            yield f"attempt {attempt} of job {id_} was started and is in no history"
    for job in record.jobs.values():
        if not job.live:
            yield from _finished_once(job, record)


def _finished_once(job: Job, record: Record) -> Iterator[str]:
    rows = record.attempts_of.get(job.id, [])
    numbers = [row.attempt for row in rows]
    if numbers != list(range(1, job.attempt + 1)):
        yield f"{job} has attempts {numbers}"
    ends = [row.attempt for row in rows if row.outcome in ENDS]
    if ends != ([job.attempt] if job.finished_by_attempt else []):
        yield f"{job} was finished by attempts {ends}"
    if isinstance(job.result, dict) and job.result.get("attempt", job.attempt) != job.attempt:
        yield f"{job} has the result of another attempt: {job.result}"
    if (
        job.status == "succeeded"
        and job.kind in record.noted_kinds
        and (job.id, job.attempt) not in record.starts
    ):
        yield f"{job} has a result of an attempt that no handler began"


def blameless(record: Record) -> Iterator[str]:
    """4: failed jobs were meant to fail, or lost their attempts as often as allowed."""
    for job in record.rows:
        if job.status == "succeeded" and job.fails:
            yield f"{job} was meant to fail"
        if job.status != "failed":
            continue
        evidence = f"{job}: {dict(job.error)}"
        verdict = CLASSES.get(job.error.get("class", ""))
        if job.error.get("reason") == "stuck_exhausted":
            yield from _really_lost(job, record)
        elif verdict is not None and verdict.fault in _NOT_OURS:
            yield f"failed for an outage: {evidence}"
        elif not job.fails:
            yield f"failed, and was not meant to: {evidence}"


def _really_lost(job: Job, record: Record) -> Iterator[str]:
    """The last loss is the failure itself; each loss was during a fault, or shortly after it."""
    lost = [
        row
        for row in record.attempts_of.get(job.id, ())
        if row.outcome in LOST or row.attempt == job.attempt
    ]
    if len(lost) <= job.recovery:
        yield f"{job} was lost {len(lost)} times, and {job.recovery} are free: {dict(job.error)}"
    for row in lost:
        if not any(
            storm.begin <= row.ended_at and row.started_at <= storm.end + AFTERMATH_SECONDS
            for storm in record.storms
        ):
            yield f"{job}: attempt {row.attempt} was lost in fine weather: {row}"
