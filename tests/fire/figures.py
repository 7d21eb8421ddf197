"""The figures of a run: how often each event happened, and how long each recovery took.

Times are seconds, as {"n", "p50", "p99", "max"}. They come from the witnesses' logs, so they
include everything that a user would wait for, also delays by the busy machine.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fire.record import Record, Start, Storm
from fire.rules.jobs import GRANT, LOST

Times = dict[str, float | int]

KILL = "kill_worker"
EVERYTHING = "restart_everything"
PAUSE = "pause_worker"
CUT_OFF = "cut_off_worker"
# How long before and after a kill no other fault may be active, for a figure of the kill alone.
CALM_SECONDS = 5.0

_TITLES = {
    "restart_after_kill": "worker killed, to the restart of a job it held",
    "restart_after_kill_alone": "the same, no other fault at that time, first loss of the job",
    "restart_after_everything": "everything killed, to the restart of a job that ran",
    "takeover_after_pause": "worker stopped (SIGSTOP), to the restart of a job it held",
    "takeover_after_cut_off": "worker cut off, to the restart of a job it held",
    "submit_after_postgres": "Postgres back, to the first accepted submit",
    "call_after_model": "model back, to its next whole answer",
    "webhook_after_end": "end of a job, to its webhook taken",
    "start_after_submit": "submit, to the first attempt",
    "end_after_submit": "submit, to the end",
    "end_after_storm": "end of the last fault, to the end of the last job",
}


def measure(record: Record) -> dict[str, Any]:
    return {"counts": _counts(record), "seconds": _seconds(record)}


def render(figures: Mapping[str, Any]) -> str:
    """Return two tables in Markdown, for the document."""
    lines = ["| how long it took | n | p50 | p99 | max |", "|---|---:|---:|---:|---:|"]
    for name, times in figures["seconds"].items():
        if times["n"]:
            shown = " | ".join(f"{times[part]:.2f} s" for part in ("p50", "p99", "max"))
            lines.append(f"| {_TITLES[name]} | {times['n']:,} | {shown} |")
    lines += ["", "| what happened | times |", "|---|---:|"]
    for name, n in figures["counts"].items():
        lines.append(f"| {name} | {n:,} |")
    return "\n".join(lines) + "\n"


def _counts(record: Record) -> dict[str, int]:
    submits = [ack for ack in record.acks if ack.kind != GRANT]
    return {
        "requests": len(submits),
        **_tally("requests", (ack.fate for ack in submits)),
        "jobs": len(record.rows),
        **_tally("jobs", (job.status for job in record.rows)),
        "jobs stuck_exhausted": sum(_is_exhausted(job.error) for job in record.rows),
        "starts": len(record.attempts),
        **_tally("starts", (row.outcome for row in record.attempts)),
        "jobs started more than once": sum(job.attempt > 1 for job in record.rows),
        "late results that changed nothing": record.late_results,
        "calls of the model": len(record.calls) + record.plain_calls,
        "calls of the model that came to nothing": sum(not call.complete for call in record.calls),
        "webhooks": len(record.deliveries),
        "webhooks sent": len(record.messages),
        **_tally("webhooks sent", (f"answered {one.answered}" for one in record.messages)),
        "on_finish callbacks": len(record.done),
        "grants of credits": len(record.grants),
        "snapshots": sum(sample.word == "sound" for sample in record.samples),
        "events that watchers saw": len(record.sights),
        "processes killed or stopped": sum(one.meant for one in record.exits),
        "faults": len(record.storms),
        **_tally("faults", (storm.fault for storm in record.storms)),
    }


def _is_exhausted(error: Mapping[str, Any]) -> bool:
    return error.get("reason") == "stuck_exhausted"


def _tally(what: str, words: Iterable[str]) -> dict[str, int]:
    return {f"{what}, {word}": n for word, n in sorted(Counter(words).items())}


def _seconds(record: Record) -> dict[str, Times]:
    kills = _of(record, lambda storm: storm.fault == KILL)
    everything = _of(record, lambda storm: storm.fault == EVERYTHING)
    pauses = _of(record, lambda storm: storm.fault == PAUSE)
    cuts = _of(record, lambda storm: storm.fault == CUT_OFF)
    servers = _of(record, lambda storm: "postgres" in storm.fault)
    models = _of(record, lambda storm: "model" in storm.fault)
    alone = [storm for storm in kills if _is_alone(storm, record.storms)]
    accepted = [ack.at for ack in record.acks if ack.fate == "accepted" and ack.kind != GRANT]
    answered = [call.ended_at or call.at for call in record.calls if call.complete]
    found = {
        "restart_after_kill": _restarts(record, kills),
        "restart_after_kill_alone": _restarts(record, alone, first=True),
        "restart_after_everything": _restarts(record, everything),
        "takeover_after_pause": _restarts(record, pauses, while_it_lasts=True),
        "takeover_after_cut_off": _restarts(record, cuts, while_it_lasts=True),
        "submit_after_postgres": _next_after([storm.end for storm in servers], accepted),
        "call_after_model": _next_after([storm.end for storm in models], answered),
        "webhook_after_end": _webhooks(record),
        "start_after_submit": [
            record.settled[job.id, 1].started_at - job.created_at
            for job in record.rows
            if (job.id, 1) in record.settled
        ],
        "end_after_submit": [
            job.finished_at - job.created_at for job in record.rows if not job.live
        ],
        "end_after_storm": _last_end(record),
    }
    return {name: spread(times) for name, times in found.items()}


def spread(times: Sequence[float]) -> Times:
    if not times:
        return {"n": 0}
    ordered = sorted(times)
    last = len(ordered) - 1
    parts = {"p50": ordered[round(0.5 * last)], "p99": ordered[round(0.99 * last)]}
    return {"n": len(ordered)} | {
        name: round(value, 3) for name, value in (parts | {"max": ordered[-1]}).items()
    }


def _of(record: Record, wanted: Callable[[Storm], bool]) -> list[Storm]:
    return [storm for storm in record.storms if wanted(storm)]


def _is_alone(storm: Storm, storms: Sequence[Storm]) -> bool:
    return not any(
        other is not storm
        and other.begin <= storm.begin + CALM_SECONDS
        and storm.begin - CALM_SECONDS <= other.end
        for other in storms
    )


def _restarts(
    record: Record, storms: Sequence[Storm], *, first: bool = False, while_it_lasts: bool = False
) -> list[float]:
    """Return the times from each fault to the next attempt of each job that its victim was running.

    `first`: only for jobs that had not been lost before; later losses have a deliberate delay.
    `while_it_lasts`: only if another worker took over before the end of the fault.
    """
    held: dict[str, list[Start]] = defaultdict(list)
    for start, act in record.starts.items():
        held[act.worker].append(start)
    times = []
    for storm in storms:
        for worker in storm.workers:
            for start in held.get(worker, ()):
                after = _next_start(record, start)
                if after is None or not _ran_at(record, start, storm.begin):
                    continue
                if (first and _was_lost_before(record, start)) or (
                    while_it_lasts and after > storm.end
                ):
                    continue
                times.append(after - storm.begin)
    return times


def _next_start(record: Record, start: Start) -> float | None:
    """Return the next start of a handler: a claim whose answer was lost starts none."""
    job, attempt = start
    later = (row.attempt for row in record.attempts_of.get(job, ()) if row.attempt > attempt)
    return next((record.starts[job, n].at for n in later if (job, n) in record.starts), None)


def _was_lost_before(record: Record, start: Start) -> bool:
    job, attempt = start
    return any(
        row.outcome in LOST for row in record.attempts_of.get(job, ()) if row.attempt < attempt
    )


def _ran_at(record: Record, start: Start, moment: float) -> bool:
    end, row = record.ends.get(start), record.settled.get(start)
    return (
        record.starts[start].at <= moment
        and (end is None or end.at > moment)
        and (row is not None and row.outcome in LOST and row.ended_at > moment)
    )


def _next_after(moments: Sequence[float], events: Sequence[float]) -> list[float]:
    ordered = sorted(events)
    positions = [(moment, bisect_right(ordered, moment)) for moment in moments]
    return [ordered[position] - moment for moment, position in positions if position < len(ordered)]


def _webhooks(record: Record) -> list[float]:
    taken: dict[str, float] = {}
    for message in record.messages:
        if isinstance(message.answered, int) and 200 <= message.answered < 300:
            taken.setdefault(message.id, message.at)
    return [
        taken[one.id] - record.jobs[one.job].finished_at
        for one in record.deliveries
        if one.id in taken and one.job in record.jobs
    ]


def _last_end(record: Record) -> list[float]:
    calm = max((storm.end for storm in record.storms), default=None)
    last = max((job.finished_at for job in record.rows if not job.live), default=None)
    return [] if calm is None or last is None else [max(0.0, last - calm)]
