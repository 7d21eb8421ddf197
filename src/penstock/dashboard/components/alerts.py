"""Alerts: what an operator has to know now, and what to do about it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from penstock.base import wording
from penstock.dashboard.components.queue_state import NOTEWORTHY, Count, QueueState, waiting

# A shorter pause is probably somebody at work.
LONG_PAUSE_SECONDS = 3_600
LONG_WAIT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Alert:
    key: str
    """Unique among the alerts of the page; part of its HTML id."""
    text: str
    """What is wrong; commands in backticks."""
    todo: str = ""
    """What to do, unless the text says it."""
    bad: bool = False
    since: str | None = None
    link: tuple[str, str] | None = None
    """Path (from the dashboard's root) and title of a page that helps; names not quoted."""


def alerts(
    overview: dict[str, Any], rows: Sequence[QueueState], *, ahead: timedelta | None
) -> list[Alert]:
    """Return all alerts, the worst first.

    `ahead`: for how long history has partitions; None if that is not known.
    """
    made = [
        *_no_worker(overview, rows),
        *_unhandled(overview),
        *_blocked_loops(overview),
        *_circuits(overview),
        *_half_up(overview),
        *_silent(overview),
        *_stuck(overview),
        *_queues(rows),
        *_receivers(overview),
        *_history(overview, ahead),
    ]
    return sorted(made, key=lambda alert: not alert.bad)


def _no_worker(overview: dict[str, Any], rows: Sequence[QueueState]) -> Iterator[Alert]:
    waits = {queue["name"] for queue in overview["queues"] if queue["waiting_for"] == "no_worker"}
    if waits:
        jobs = waiting([row for row in rows if row.name in waits])
        others = any(worker["alive"] for worker in overview["workers"])
        serving = f" that serves {_listed(sorted(waits))}" if others else ""
        yield Alert(
            "no-worker",
            f"No worker{serving} is alive, and {_waiting(jobs)}.",
            "Start one: `penstock worker`. No job is lost meanwhile.",
            bad=True,
            link=("workers", "Workers"),
        )


def _unhandled(overview: dict[str, Any]) -> Iterator[Alert]:
    """Report jobs whose kind was removed or renamed, or whose worker was not started."""
    for row in overview["unhandled"]:
        queue, kind = row["queue"], row["kind"]
        yield Alert(
            f"unhandled-{queue}-{kind}",
            f"{_waiting(Count(row['jobs'], about=row['about']))} in queue {queue}, and no worker"
            f" has a handler for kind {kind}.",
            f"Start a worker whose app declares {kind}. Was it renamed or removed? Keep its handler"
            " until these jobs have finished, or cancel them on the page.",
            bad=True,
            since=row["oldest_at"],
            link=(f"jobs?kind={quote(kind)}&status=queued", f"Jobs of kind {kind}"),
        )


def _blocked_loops(overview: dict[str, Any]) -> Iterator[Alert]:
    """Report handlers that block their worker's event loop now, or did in the last hour."""
    for row in overview["blocked"]:
        kind, worker, length = row["kind"], row["worker_id"], wording.seconds(row["seconds"])
        if kind is not None:
            verb = "has blocked" if row["now"] else "blocked"
            text = f"A handler of kind {kind} {verb} the event loop of worker {worker} for {length}"
        elif row["now"]:
            text = (
                f"The event loop of worker {worker} has been blocked for {length};"
                " no job was seen to block it"
            )
        else:
            continue
        yield Alert(
            f"blocked-{worker}-{row['since']}",
            f"{text}{', at ' + row['place'] if row['place'] else ''}.",
            "Meanwhile no other job of that worker made progress; this does not count as a"
            " failure of theirs. Await something there, use `asyncio.to_thread`, or make the"
            " handler a plain `def`.",
            bad=row["now"],
            since=row["since"],
            link=("workers", "Workers")
            if row["job"] is None
            else (f"jobs/{row['job']}", "The job"),
        )


def _circuits(overview: dict[str, Any]) -> Iterator[Alert]:
    """Report each provider that does not answer once, however many queues call it."""
    addresses = {queue["name"]: queue["circuit"]["address"] for queue in overview["queues"]}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for alert in overview["alerts"]:
        # A queue without an address (for example one that was stopped by hand) is its own group.
        address = addresses.get(alert["queue"]) or f"queue {alert['queue']}"
        groups.setdefault((alert["class"], address), []).append(alert)
    for (cls, address), group in groups.items():
        if len(group) > 1:
            yield _provider(cls, address, group)
            continue
        [alert] = group
        yield Alert(
            f"queue-{alert['queue']}",
            f"{alert['message']}.",
            bad=True,
            since=alert["raised_at"],
            link=_to_queues([alert["queue"]]),
        )


def _provider(cls: str, address: str, group: Sequence[dict[str, Any]]) -> Alert:
    names = sorted(alert["queue"] for alert in group)
    queues = f"queues {_listed(names, most=5)}"
    text, todo = {
        "auth": (
            f"The provider at {address} refuses the key that {queues} use.",
            "Correct the key, restart the workers, then run `penstock resume QUEUE` for each.",
        ),
        "quota": (
            f"The quota or credit of {queues} at {address} is used up.",
            "Raise it, then run `penstock resume QUEUE` for each.",
        ),
        "config": (
            f"The provider at {address} does not know the model of {queues}, or refuses a setting.",
            "Correct the kinds, restart the workers, then run `penstock resume QUEUE` for each.",
        ),
    }.get(
        cls,
        (
            f"The provider at {address} is unavailable ({cls}), and {queues} need it.",
            "Their jobs wait and start automatically when it answers again.",
        ),
    )
    return Alert(
        f"provider-{cls}-{address}",
        text,
        todo,
        bad=True,
        since=min(alert["raised_at"] for alert in group),
        link=_to_queues(names),
    )


def _half_up(overview: dict[str, Any]) -> Iterator[Alert]:
    """Report providers that answer some calls and refuse others."""
    for queue in overview["queues"]:
        circuit, name = queue["circuit"], queue["name"]
        if circuit["state"] == "ramping" and circuit["refused"] >= NOTEWORTHY:
            limit = "" if queue["limit"] is None else f" of {queue['limit']:,}"
            yield Alert(
                f"half-up-{name}",
                f"The provider of queue {name} refuses {circuit['refused_words']} of its calls.",
                f"At most {circuit['allowed']:,}{limit} of its jobs run at once, more with each"
                " answer; refused jobs are tried again, and no failure is counted. If this"
                " continues, the provider has less capacity than the queue's limit.",
                since=circuit["since"],
                link=(f"queues/{name}", f"Queue {name}"),
            )


def _silent(overview: dict[str, Any]) -> Iterator[Alert]:
    silent = [w for w in overview["workers"] if not w["alive"] and w["lost_at"] is None]
    if not silent:
        return
    names = _listed([worker["worker_id"] for worker in silent])
    running = sum(worker["running"] for worker in silent)
    single = len(silent) == 1
    yield Alert(
        "silent",
        f"Worker{'' if single else 's'} {names} send{'s' if single else ''} no heartbeat.",
        "Check that the machine is up and reaches the database. "
        + (
            f"Other workers will start {'its' if single else 'their'}"
            f" {wording.count(running, 'job')} again."
            if running
            else "No job is lost."
        ),
        since=min(worker["last_heartbeat"] for worker in silent),
        link=("workers", "Workers"),
    )


def _stuck(overview: dict[str, Any]) -> Iterator[Alert]:
    parts = []
    if stale := overview["stale"]:
        reports = "reports" if stale == 1 else "report"
        parts.append(f"{wording.count(stale, 'running job')} {reports} no progress")
    if recovered := overview["recovered"]:
        its, waits = ("its", "waits") if recovered == 1 else ("their", "wait")
        jobs = wording.count(recovered, "job")
        parts.append(f"{jobs} that got stuck or lost {its} worker {waits} for the next attempt")
    if parts:
        yield Alert(
            "stuck",
            f"{', and '.join(parts)}.",
            "Stuck jobs are started again automatically. If it is always the same kind or stage,"
            " search for the cause there.",
            link=("stuck", "Stuck jobs"),
        )


def _queues(rows: Sequence[QueueState]) -> Iterator[Alert]:
    """Report paused queues in one alert, and queues that wait without a reason in another."""
    paused = [row for row in rows if waiting([row]) and row.paused_seconds >= LONG_PAUSE_SECONDS]
    if paused:
        names, longest = [row.name for row in paused], max(row.paused_seconds for row in paused)
        single = len(paused) == 1
        yield Alert(
            "paused",
            f"Queue{'' if single else 's'} {_listed(names)} {'has' if single else 'have'} been"
            f" paused for {wording.seconds(longest)}, and {_waiting(waiting(paused))}.",
            f"Resume {'it' if single else 'them'}:"
            f" `penstock resume {names[0] if single else 'QUEUE'}`.",
            link=_to_queues(names),
        )
    late = [row for row in rows if row.unexplained and row.waits_seconds >= LONG_WAIT_SECONDS]
    if late:
        names, longest = [row.name for row in late], max(row.waits_seconds for row in late)
        yield Alert(
            "unexplained",
            f"{_waiting(waiting(late))} in queue{'' if len(late) == 1 else 's'} {_listed(names)}"
            f" for {wording.seconds(longest)}, although nothing stops them.",
            "The workers are busy with other queues: start more of them.",
            link=_to_queues(names),
        )


def _receivers(overview: dict[str, Any]) -> Iterator[Alert]:
    for host in overview["failing_hosts"]:
        yield Alert(
            f"host-{host['host']}",
            f"{host['host']} has not accepted {wording.count(host['count'], 'webhook')}, each"
            " tried three times or more.",
            "Check the receiver. Webhooks are tried again for days; `penstock webhooks` lists"
            " them.",
            since=host["since"],
        )


def _history(overview: dict[str, Any], ahead: timedelta | None) -> Iterator[Alert]:
    wanted = timedelta(seconds=overview["room_seconds"])
    if ahead is not None and ahead < wanted / 2:
        yield Alert(
            "history",
            "The partitions for finished jobs exist only for the next"
            f" {wording.seconds(max(0.0, ahead.total_seconds()))} instead of"
            f" {wording.seconds(wanted.total_seconds())}.",
            "Keep a worker running: workers create them.",
        )


def _waiting(jobs: Count) -> str:
    return "1 job waits" if str(jobs) == "1" else f"{jobs} jobs wait"


def _to_queues(names: Sequence[str]) -> tuple[str, str]:
    return (f"queues/{names[0]}", f"Queue {names[0]}") if len(names) == 1 else ("queues", "Queues")


def _listed(names: Sequence[str], most: int = 3) -> str:
    """Return `a, b, c and 4 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
