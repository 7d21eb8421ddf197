"""Metrics in the text format of Prometheus.

Labels are names of queues, kinds and routes, which are few; never of accounts, topics or jobs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from penstock.http.middleware.limits import Pool
from penstock.http.middleware.requests import BOUNDS, Counts

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_STATES = ("closed", "open", "ramping")
_FINAL = ("succeeded", "failed", "cancelled")
_FAILURES = ("failed", "retried", "deferred", "timed_out", "lost", "stuck")

Key = tuple[str, str, str]
"""Queue, kind, and outcome or class."""
Labels = Mapping[str, object]
Sample = tuple[str, Labels, float]
"""Suffix of the family's name, labels, value."""
Family = tuple[str, str, str, Iterable[Sample]]
"""Name, type, description, samples."""


def render(
    gauges: Mapping[str, Any], requests: Counts, open_streams: int, pools: Sequence[Pool]
) -> str:
    """Render all metrics; `gauges`: the database's numbers for all processes."""
    lines: list[str] = []
    for name, kind, description, samples in (
        *_of_queues(gauges["queues"]),
        *_of_finished(gauges["ended"], gauges["bounds"]),
        *_of_requests(requests),
        _single("penstock_workers", "Live workers", gauges["workers"]),
        _unhandled(gauges["unhandled"]),
        *_blocked(gauges["blocked"]),
        _single("penstock_stuck_jobs", "Jobs that admin/status lists as stuck", gauges["stuck"]),
        _single("penstock_open_streams", "Live streams of this process", open_streams),
        *_of_pools(pools),
    ):
        lines += (f"# HELP {name} {description}", f"# TYPE {name} {kind}")
        lines += (_line(name, *sample) for sample in samples)
    return "\n".join(lines) + "\n"


def _single(name: str, description: str, value: float) -> Family:
    return name, "gauge", description, [("", {}, value)]


def _unhandled(kinds: Sequence[Mapping[str, Any]]) -> Family:
    return (
        "penstock_unhandled_jobs",
        "gauge",
        "Queued jobs of kinds without a handler in any live worker; at most 1,000 of each kind",
        [("", {"queue": row["queue"], "kind": row["kind"]}, row["jobs"]) for row in kinds],
    )


def _blocked(blocked: Mapping[str, Any]) -> Iterable[Family]:
    """Metrics of workers' event loops; the kind is empty if no blocking job was identified."""
    yield _single(
        "penstock_workers_blocked", "Workers whose event loop is blocked now", blocked["now"]
    )
    for name, description, field in (
        ("penstock_loop_blocked_total", "How often a worker's event loop was blocked", "times"),
        ("penstock_loop_blocked_seconds_total", "Total time of blocked event loops", "seconds"),
    ):
        samples = [("", {"kind": row["kind"]}, row[field]) for row in blocked["kinds"]]
        yield name, "counter", description, samples


def _of_queues(queues: Sequence[Mapping[str, Any]]) -> Iterable[Family]:
    yield (
        "penstock_queue_jobs",
        "gauge",
        "Live jobs by queue and status",
        [
            ("", {"queue": row["queue"], "status": status}, row[status])
            for row in queues
            for status in ("scheduled", "queued", "running", "awaiting")
        ],
    )
    yield (
        "penstock_queue_oldest_seconds",
        "gauge",
        "How long the oldest queued job has waited",
        [("", {"queue": row["queue"]}, row["oldest_seconds"]) for row in queues],
    )
    yield (
        "penstock_queue_paused",
        "gauge",
        "1 while an operator has paused the queue",
        [("", {"queue": row["queue"]}, int(row["paused"])) for row in queues],
    )
    yield (
        "penstock_queue_circuit",
        "gauge",
        "1 for the present state of the queue's circuit",
        [
            ("", {"queue": row["queue"], "state": state}, int(row["circuit"] == state))
            for row in queues
            for state in _STATES
        ],
    )


def _of_finished(finished: Sequence[Mapping[str, Any]], bounds: Sequence[int]) -> Iterable[Family]:
    """Sums over classes; upkeep rolls up every ten seconds, so these are up to ten seconds old."""
    jobs: dict[Key, list[int]] = {}
    survived: Counter[Key] = Counter()
    failures: Counter[Key] = Counter()
    for row in finished:
        key = (row["queue"], row["kind"], row["outcome"])
        if row["outcome"] in _FINAL:
            sums = [row["count"], row["total_ms"], *row["histogram"]]
            jobs[key] = [a + b for a, b in zip(jobs.get(key, [0] * len(sums)), sums, strict=True)]
        else:
            survived[key] += row["count"]
        if row["class"] and row["outcome"] in _FAILURES:
            failures[row["queue"], row["kind"], row["class"]] += row["count"]
    names = ("queue", "kind", "outcome")
    yield (
        "penstock_jobs_finished_total",
        "counter",
        "Finished jobs",
        [("", dict(zip(names, key, strict=True)), row[0]) for key, row in jobs.items()],
    )
    yield (
        "penstock_job_duration_seconds",
        "histogram",
        "Duration of the last attempt of a job",
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
        "Attempts whose job did not finish",
        [("", dict(zip(names, key, strict=True)), count) for key, count in survived.items()],
    )
    yield (
        "penstock_failures_total",
        "counter",
        "Failed attempts and jobs by class of error",
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
        "Time until the answer began",
        [
            sample
            for (method, route), latency in sorted(requests.latencies.items())
            for sample in _histogram(
                {"method": method, "route": route},
                BOUNDS,
                list(accumulate(latency.counts)),
                sum(latency.counts),
                latency.seconds,
            )
        ],
    )
    yield _single("penstock_http_open_requests", "Requests in progress", requests.open)


def _of_pools(pools: Sequence[Pool]) -> Iterable[Family]:
    yield (
        "penstock_http_held",
        "gauge",
        "Resources of this process that open requests hold",
        [("", {"thing": pool.name}, pool.total) for pool in pools],
    )
    yield (
        "penstock_http_held_refused_total",
        "counter",
        "Requests refused because their caller, or all callers together, held too much",
        [("", {"thing": pool.name}, pool.refused) for pool in pools],
    )


def _histogram(
    labels: Labels, bounds: Sequence[float], upto: Sequence[int], count: int, total: float
) -> list[Sample]:
    """Return a histogram's samples; `upto`: the cumulative count of each bound, maybe the total."""
    return [
        *(
            ("_bucket", {**labels, "le": _number(bound)}, n)
            for bound, n in zip(bounds, upto, strict=False)
        ),
        ("_bucket", {**labels, "le": "+Inf"}, count),
        ("_sum", labels, total),
        ("_count", labels, count),
    ]


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
