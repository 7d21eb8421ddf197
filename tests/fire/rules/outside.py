"""Rules 5, 6, 9 and 12: the model, the receiver, the app's own table, and the watchers."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from fire.logs import Message, Sight
from fire.record import Delivery, Record
from fire.rules.jobs import ENDS

PAINT = "paint"
# The model may be killed between its answer and its log line.
UNNOTED_SECONDS = 1.0
SKEWED = "skewed"
"""In the name of a worker with a deliberately wrong clock: its times are not used."""


def calls(record: Record) -> Iterator[str]:
    """5: only attempts called the model, once each, and every success had an answer."""
    # A retried job has the tag of the first, so several attempts may have the same name.
    starts: dict[tuple[str, int], list[float]] = defaultdict(list)
    for act in record.starts.values():
        at = 0.0 if SKEWED in act.worker else act.at
        starts[act.tag, act.attempt].append(at)
    asked = Counter(call.start for call in record.calls if call.start is not None)
    for start, n in asked.items():
        if n > max(1, len(starts[start])):
            yield f"the model was called {n} times by attempt {start[1]} of tag {start[0]}"
    for call in record.calls:
        begun = starts.get(call.start or ("", 0))
        if not begun or call.at < min(begun):
            yield f"the model was called by an unknown attempt: {call}"
    complete = {call.start for call in record.calls if call.complete}
    asking = {
        record.jobs[a.job].kind for a in record.acts if a.word == "model" and a.job in record.jobs
    }
    kills = [storm.begin for storm in record.storms if _hits_model(storm.fault)]
    for job in record.rows:
        if (
            job.status == "succeeded"
            and job.kind in asking
            and (job.tag, job.attempt) not in complete
            and not any(abs(job.finished_at - kill) <= UNNOTED_SECONDS for kill in kills)
        ):
            yield f"{job} succeeded without a whole answer of the model"


def _hits_model(fault: str) -> bool:
    return "model" in fault or "everything" in fault


def webhooks(record: Record) -> Iterator[str]:
    """6: each finished job with a webhook caused one signed message with one id, and no others."""
    deliveries = {one.id: one for one in record.deliveries}
    owed = Counter(one.job for one in record.deliveries)
    for job in record.rows:
        if job.has_on_finish and not job.live and not owed[job.id]:
            yield f"{job} asked for a webhook, and none was left to be sent"
    taken = {
        message.id
        for message in record.messages
        if isinstance(message.answered, int) and 200 <= message.answered < 300
    }
    for delivery in record.deliveries:
        yield from _has_right_outcome(delivery, record)
        if delivery.status != "delivered":
            yield f"webhook not delivered: {delivery}"
        elif delivery.id not in taken:
            yield f"webhook is marked as delivered, but was not received: {delivery}"
    for message in record.messages:
        yield from _genuine(message, deliveries.get(message.id), record)


def _has_right_outcome(delivery: Delivery, record: Record) -> Iterator[str]:
    job = record.jobs.get(delivery.job)
    if job is None or job.live or delivery.event != f"job.{job.status}":
        yield f"webhook of {job} reports another outcome: {delivery}"


def _genuine(message: Message, delivery: Delivery | None, record: Record) -> Iterator[str]:
    if not message.signature:
        yield f"webhook with a wrong signature: {message}"
    if delivery is None:
        yield f"webhook with an id that is of no delivery: {message}"
    elif (message.job, message.event) != (delivery.job, delivery.event):
        yield f"webhook under the id of another: {message} and {delivery}"
    elif (job := record.jobs.get(delivery.job)) and message.at < job.finished_at:
        yield f"webhook {job.finished_at - message.at:.3f} s before the end: {message}"


def on_finish(record: Record) -> Iterator[str]:
    """9: `on_finish` of paint has written each finished job once, and nothing else."""
    wanted = {job.id: job for job in record.rows if job.kind == PAINT and not job.live}
    written = Counter(id_ for id_, _ in record.done)
    called = {act.job for act in record.acts if act.word == "on_finish"}
    for id_, job in wanted.items():
        if not written[id_]:
            yield f"{job}: on_finish did not run"
    for id_, n in written.items():
        if n > 1:
            yield f"job {id_}: on_finish ran {n} times"
    for id_, attempt in record.done:
        if id_ not in wanted:
            yield f"on_finish ran for job {id_}, which is not a finished job of its kind"
        elif attempt != wanted[id_].attempt:
            yield f"{wanted[id_]}: on_finish got attempt {attempt}"
        elif id_ not in called:
            yield f"{wanted[id_]}: written by no on_finish that we know of"


def watchers(record: Record) -> Iterator[str]:
    """12: the states that a watcher gets only advance, and the last one is the outcome."""
    seen: dict[tuple[str, str], list[Sight]] = defaultdict(list)
    for sight in record.sights:
        seen[sight.watcher, sight.job].append(sight)
    for (watcher, id_), sights in seen.items():
        who = f"watcher {watcher} of job {id_}"
        versions = [sight for sight in sights if sight.version is not None]
        for before, after in pairwise(versions):
            if (after.version or 0) < (before.version or 0):
                yield f"{who} saw version {after.version} after {before.version}"
        final = next((sight.status for sight in sights if sight.status in ENDS), None)
        job = record.jobs.get(id_)
        if final is not None and (job is None or job.status != final):
            yield f"{who} saw it {final}, and it is {job}"
        if final is not None and sights[-1].status not in {final, None}:
            yield f"{who} saw it {sights[-1].status} after it was {final}"
        if final is None and any(sight.event == "done" for sight in sights):
            yield f"{who} watched to the end and did not see it"
