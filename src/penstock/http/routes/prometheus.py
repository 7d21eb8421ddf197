"""Numbers in the text form of Prometheus.

Labels are names of queues, kinds and routes, which are few; never of accounts, topics or jobs.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.http.middleware.limits import Pool
from penstock.http.middleware.requests import BOUNDS, Counts

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_STATES = ("closed", "open", "ramping")
_FINAL = ("succeeded", "failed", "cancelled")
_FAILURES = ("failed", "retried", "deferred", "timed_out", "lost", "stuck")

Labels = Mapping[str, object]
Sample = tuple[str, Labels, float]
"""What is added to the family's name, labels, value."""
Family = tuple[str, str, str, Iterable[Sample]]
"""Name, type, what it is."""


def render(
    gauges: Mapping[str, Any], requests: Counts, open_streams: int, pools: Sequence[Pool]
) -> str:
    """`gauges`: what the database counts, for all; the rest is of this process."""
    lines: list[str] = []
    for name, kind, told, samples in (
        *_of_queues(gauges["queues"]),
        *_of_ends(gauges["ended"], gauges["bounds"]),
        *_of_requests(requests),
        _single("penstock_workers", "Workers that are alive", gauges["workers"]),
        _unhandled(gauges["unhandled"]),
        *_blocked(gauges["blocked"]),
        _single("penstock_stuck_jobs", "What admin/status lists as stuck", gauges["stuck"]),
        _single("penstock_open_streams", "Live streams of this process", open_streams),
        *_of_pools(pools),
    ):
        lines += (f"# HELP {name} {told}", f"# TYPE {name} {kind}")
        lines += (_line(name, *sample) for sample in samples)
    return "\n".join(lines) + "\n"


def _single(name: str, told: str, value: float) -> Family:
    return name, "gauge", told, [("", {}, value)]


def _unhandled(kinds: Sequence[Mapping[str, Any]]) -> Family:
    return (
        "penstock_unhandled_jobs",
        "gauge",
        "Queued jobs of kinds that no live worker has a handler for; 1,000 at most of each kind",
        [("", {"queue": one["queue"], "kind": one["kind"]}, one["jobs"]) for one in kinds],
    )


def _blocked(blocked: Mapping[str, Any]) -> Iterable[Family]:
    """Event loops of workers; the kind is empty where no job was seen to block."""
    yield _single(
        "penstock_workers_blocked", "Workers whose event loop stands still now", blocked["now"]
    )
    for name, told, field in (
        ("penstock_loop_blocked_total", "How often a worker's event loop stood still", "times"),
        ("penstock_loop_blocked_seconds_total", "For how long, all told", "seconds"),
    ):
        samples = [("", {"kind": one["kind"]}, one[field]) for one in blocked["kinds"]]
        yield name, "counter", told, samples


def _of_queues(queues: Sequence[Mapping[str, Any]]) -> Iterable[Family]:
    yield (
        "penstock_queue_jobs",
        "gauge",
        "Live jobs by queue and status",
        [
            ("", {"queue": one["queue"], "status": status}, one[status])
            for one in queues
            for status in ("scheduled", "queued", "running", "awaiting")
        ],
    )
    yield (
        "penstock_queue_oldest_seconds",
        "gauge",
        "For how long the oldest queued job waits",
        [("", {"queue": one["queue"]}, one["oldest_seconds"]) for one in queues],
    )
    yield (
        "penstock_queue_paused",
        "gauge",
        "1 while an operator has paused the queue",
        [("", {"queue": one["queue"]}, int(one["paused"])) for one in queues],
    )
    yield (
        "penstock_queue_circuit",
        "gauge",
        "1 at the state that the queue's circuit has",
        [
            ("", {"queue": one["queue"], "state": state}, int(one["circuit"] == state))
            for one in queues
            for state in _STATES
        ],
    )


def _of_ends(ended: Sequence[Mapping[str, Any]], bounds: Sequence[int]) -> Iterable[Family]:
    """Sums over classes; upkeep adds up every ten seconds, so these are that much backend."""
    jobs: dict[tuple[str, str, str], list[int]] = {}
    starts: dict[tuple[str, str, str], int] = {}
    failures: dict[tuple[str, str, str], int] = {}
    for one in ended:
        key = (one["queue"], one["kind"], one["outcome"])
        if one["outcome"] in _FINAL:
            row = [one["count"], one["total_ms"], *one["histogram"]]
            before = jobs.get(key, [0] * len(row))
            jobs[key] = [a + b for a, b in zip(before, row, strict=True)]
        else:
            starts[key] = starts.get(key, 0) + one["count"]
        if one["class"] and one["outcome"] in _FAILURES:
            of = (one["queue"], one["kind"], one["class"])
            failures[of] = failures.get(of, 0) + one["count"]
    names = ("queue", "kind", "outcome")
    yield (
        "penstock_jobs_finished_total",
        "counter",
        "Jobs that have ended",
        [("", dict(zip(names, key, strict=True)), row[0]) for key, row in jobs.items()],
    )
    yield (
        "penstock_job_duration_seconds",
        "histogram",
        "How long the last start of a job took",
        [
            sample
            for key, (count, total, *upto) in jobs.items()
            for sample in _histogram(
                dict(zip(names, key, strict=True)),
                [b / 1000 for b in bounds],
                upto,
                count,
                total / 1000,
            )
        ],
    )
    yield (
        "penstock_starts_given_back_total",
        "counter",
        "Starts that their job survived",
        [("", dict(zip(names, key, strict=True)), count) for key, count in starts.items()],
    )
    yield (
        "penstock_failures_total",
        "counter",
        "Failed starts and jobs by class of error",
        [
            ("", dict(zip(("queue", "kind", "class"), key, strict=True)), count)
            for key, count in failures.items()
        ],
    )


def _of_requests(requests: Counts) -> Iterable[Family]:
    yield (
        "penstock_http_requests_total",
        "counter",
        "Requests that this process has answered",
        [
            ("", {"method": method, "route": route, "status": status}, count)
            for (method, route, status), count in sorted(requests.answers.items())
        ],
    )
    yield (
        "penstock_http_request_duration_seconds",
        "histogram",
        "Until the answer began",
        [
            sample
            for (method, route), latency in sorted(requests.latencies.items())
            for sample in _histogram(
                {"method": method, "route": route},
                BOUNDS,
                _upto(latency.counts),
                sum(latency.counts),
                latency.seconds,
            )
        ],
    )
    yield _single("penstock_http_open_requests", "Requests that are not over", requests.open)


def _of_pools(pools: Sequence[Pool]) -> Iterable[Family]:
    yield (
        "penstock_http_held",
        "gauge",
        "What open requests hold of this process",
        [("", {"thing": pool.name}, pool.total) for pool in pools],
    )
    yield (
        "penstock_http_held_refused_total",
        "counter",
        "Requests that were refused since their caller, or all together, held too much",
        [("", {"thing": pool.name}, pool.refused) for pool in pools],
    )


def _histogram(
    labels: Labels, bounds: Sequence[float], upto: Sequence[int], count: int, total: float
) -> list[Sample]:
    """`upto`: how many took at most each bound; one more, or as many, may follow."""
    return [
        *(
            ("_bucket", {**labels, "le": _number(bound)}, n)
            for bound, n in zip(bounds, upto, strict=False)
        ),
        ("_bucket", {**labels, "le": "+Inf"}, count),
        ("_sum", labels, total),
        ("_count", labels, count),
    ]


def _upto(counts: Sequence[int]) -> list[int]:
    found, so_far = [], 0
    for count in counts:
        so_far += count
        found.append(so_far)
    return found


def _line(name: str, suffix: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in labels.items())
    return (
        f"{name}{suffix}{{{pairs}}} {_number(value)}"
        if pairs
        else f"{name}{suffix} {_number(value)}"
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
