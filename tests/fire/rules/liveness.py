"""Rules 14 to 16: no work is stuck; a blocked loop and odd exceptions harm no other job."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from fire.logs import Act
from fire.record import Record
from fire.rules.outside import SKEWED

# Outcomes that count as a failure, and classes that only the passing of time causes.
FAILURES = {"retried", "timed_out", "stuck", "failed"}
TIME = {"timeout", "stalled"}
# A victim is noticed after the loop continues, or before that by upkeep.
AFTERMATH_SECONDS = 3.0
# A stop this short causes no timeout.
LEAST_SECONDS = 2.0
# Their handlers call a model, which may be silent for other reasons.
MODEL = "model"
ODD = "odd"


@dataclass(frozen=True, slots=True)
class Blocked:
    """A blocked loop: its worker, and the job that blocked it."""

    worker: str
    job: str
    begin: float
    end: float


def moves(record: Record) -> Iterator[str]:
    """14: no sample, and no check at the end, has found work that was stuck for long."""
    for sample in record.samples:
        if sample.word == "stuck":
            yield f"at {sample.at:.3f}: {sample.what}"


def blocked_loops(record: Record) -> Iterator[str]:
    """15: while a worker's loop was blocked, only the blocking job gets a failure."""
    by_worker = defaultdict(list)
    for stop in _blocked(record):
        by_worker[stop.worker].append(stop)
    for row in record.attempts:
        job = record.jobs.get(row.job)
        if row.outcome not in FAILURES or row.error_class not in TIME or job is None:
            continue
        if job.queue == MODEL:
            continue
        for stop in by_worker[row.worker or ""]:
            if (
                row.job != stop.job
                and row.started_at < stop.end
                and stop.begin < row.ended_at <= stop.end + AFTERMATH_SECONDS
            ):
                yield (
                    f"{job}: attempt {row.attempt} was counted as {row.error_class}, while job"
                    f" {stop.job} blocked {stop.worker} for {stop.end - stop.begin:.1f} s"
                )


def _blocked(record: Record) -> Iterator[Blocked]:
    """Read the blocks from the handlers' log; a killed one lasted until its attempt was settled."""
    ends = {(act.job, act.attempt): act for act in record.acts if act.word == "unblock"}
    for act in record.acts:
        if act.word != "block" or SKEWED in act.worker:
            continue
        end = _end(act, ends, record)
        if end - act.at >= LEAST_SECONDS:
            yield Blocked(act.worker, act.job, act.at, end)


def _end(act: Act, ends: dict[tuple[str, int], Act], record: Record) -> float:
    start = (act.job, act.attempt)
    if start in ends:
        return ends[start].at
    return record.settled[start].ended_at if start in record.settled else act.at


def odd_exceptions(record: Record) -> Iterator[str]:
    """16: an odd exception fails its attempt at once, without holding its slot any longer."""
    for row in record.attempts:
        job = record.jobs.get(row.job)
        if job is not None and job.kind.startswith(ODD) and row.error_class in TIME:
            yield f"{job}: attempt {row.attempt} ended with {row.error_class}: its handler raised"
