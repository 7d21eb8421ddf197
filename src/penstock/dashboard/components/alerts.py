"""What an operator has to know now, each with what to do about it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from penstock.base import wording
from penstock.dashboard.components.queue_state import NOTEWORTHY, Count, Standing, waiting

# Shorter pauses are somebody at work.
LONG_PAUSE = timedelta(hours=1)
LONG_WAIT = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Alert:
    key: str
    """Tells it from the others: an id of its own."""
    text: str
    """What is; commands in backticks."""
    todo: str = ""
    """What to do, where the text does not say it."""
    bad: bool = False
    since: str | None = None
    link: tuple[str, str] | None = None
    """A page that helps, from the dashboard's root, and what to call it; names not quoted."""


def alerts(
    found: dict[str, Any], rows: Sequence[Standing], *, room: timedelta | None
) -> list[Alert]:
    """The worst first. `room`: for how long history has partitions; None: not known."""
    made = [
        *_nobody(found, rows),
        *_unhandled(found),
        *_blocked(found),
        *_of_circuits(found),
        *_half_up(found),
        *_silent(found),
        *_stuck(found),
        *_queues(rows),
        *_receivers(found),
        *_history(found, room),
    ]
    return sorted(made, key=lambda alert: not alert.bad)


def _nobody(found: dict[str, Any], rows: Sequence[Standing]) -> Iterator[Alert]:
    waits = {queue["name"] for queue in found["queues"] if queue["waiting_for"] == "no_worker"}
    if waits:
        jobs = waiting([row for row in rows if row.name in waits])
        others = any(worker["alive"] for worker in found["workers"])
        which = f" that serves {_listed(sorted(waits))}" if others else ""
        yield Alert(
            "no-worker",
            f"No worker{which} is alive, and {_waiting(jobs)} for one.",
            "Start one: `penstock worker`. Nothing is lost meanwhile.",
            bad=True,
            link=("workers", "Workers"),
        )


def _unhandled(found: dict[str, Any]) -> Iterator[Alert]:
    """Jobs of a kind that was removed or renamed, or whose worker has not been started."""
    for of in found["unhandled"]:
        queue, kind = of["queue"], of["kind"]
        yield Alert(
            f"unhandled-{queue}-{kind}",
            f"{_waiting(Count(of['jobs'], about=of['about']))} in queue {queue}, and no worker has"
            f" a handler for kind {kind}.",
            f"Start a worker whose app declares {kind}. Was it renamed or removed? Keep its handler"
            " until these jobs have finished, or cancel them on the page.",
            bad=True,
            since=of["oldest_at"],
            link=(f"jobs?kind={quote(kind)}&status=queued", f"Jobs of kind {kind}"),
        )


def _blocked(found: dict[str, Any]) -> Iterator[Alert]:
    """A handler that blocks its worker's event loop: in this hour, or now."""
    for of in found["blocked"]:
        if of["kind"] is None and not of["now"]:
            continue
        length = wording.seconds(of["seconds"])
        who = (
            "The event loop of worker" if of["kind"] is None else f"A handler of kind {of['kind']}"
        )
        if of["kind"] is None:
            text = f"{who} {of['worker_id']} has stood still for {length}; no job was seen to block"
        elif of["now"]:
            text = f"{who} has blocked the event loop of worker {of['worker_id']} for {length}"
        else:
            text = f"{who} blocked the event loop of worker {of['worker_id']} for {length}"
        yield Alert(
            f"blocked-{of['worker_id']}-{of['since']}",
            f"{text}{', at ' + of['place'] if of['place'] else ''}.",
            "No other job of that worker went on meanwhile; none of them was charged for it."
            " Await something there, give it to `asyncio.to_thread`, or make the handler a plain"
            " `def`.",
            bad=of["now"],
            since=of["since"],
            link=("workers", "Workers") if of["job"] is None else (f"jobs/{of['job']}", "The job"),
        )


def _of_circuits(found: dict[str, Any]) -> Iterator[Alert]:
    """One for each provider, however many queues call it."""
    addresses = {queue["name"]: queue["circuit"]["address"] for queue in found["queues"]}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for alert in found["alerts"]:
        # A queue without an address, as one that was stopped by hand, is a group of its own.
        where = addresses.get(alert["queue"]) or f"queue {alert['queue']}"
        groups.setdefault((alert["class"], where), []).append(alert)
    for (cls, where), group in groups.items():
        if len(group) > 1:
            yield _of_provider(cls, where, group)
            continue
        [alert] = group
        text = alert["message"]
        yield Alert(
            f"queue-{alert['queue']}",
            f"{text[:1].upper()}{text[1:]}.",
            bad=True,
            since=alert["raised_at"],
            link=(f"queues/{alert['queue']}", f"Queue {alert['queue']}"),
        )


def _of_provider(cls: str, address: str, group: Sequence[dict[str, Any]]) -> Alert:
    names = sorted(alert["queue"] for alert in group)
    queues = f"queues {_listed(names, most=5)}"
    match cls:
        case "auth":
            text = f"The provider at {address} refuses the key that {queues} use."
            todo = "Correct it, restart the workers, then `penstock resume QUEUE` for each."
        case "quota":
            text = f"The quota or credit of {queues} at {address} is used up."
            todo = "Raise it, then `penstock resume QUEUE` for each."
        case "config":
            text = (
                f"The provider at {address} does not know the model of {queues}, or refuses a"
                " setting."
            )
            todo = (
                "Correct the job kinds, restart the workers, then `penstock resume QUEUE` for each."
            )
        case _:
            text = f"The provider at {address} is not available ({cls}), and {queues} need it."
            todo = "Their jobs wait and go on by themselves."
    return Alert(
        f"provider-{cls}-{address}",
        text,
        todo,
        bad=True,
        since=min(alert["raised_at"] for alert in group),
        link=_to_queues(names),
    )


def _half_up(found: dict[str, Any]) -> Iterator[Alert]:
    """Providers that answer some calls and refuse others."""
    for queue in found["queues"]:
        circuit, name = queue["circuit"], queue["name"]
        if circuit["state"] == "ramping" and circuit["refused"] >= NOTEWORTHY:
            limit = "" if queue["limit"] is None else f" of {queue['limit']:,}"
            yield Alert(
                f"half-up-{name}",
                f"The provider of queue {name} refuses {circuit['refused_words']} of its calls.",
                f"At most {circuit['allowed']:,}{limit} of its jobs run at once, more with each"
                " answer; refused jobs try again, and no failure is counted. If it goes on, the"
                " provider has less room than the queue's limit.",
                since=circuit["since"],
                link=(f"queues/{name}", f"Queue {name}"),
            )


def _silent(found: dict[str, Any]) -> Iterator[Alert]:
    silent = [w for w in found["workers"] if not w["alive"] and w["lost_at"] is None]
    if not silent:
        return
    names = _listed([worker["worker_id"] for worker in silent])
    running = sum(worker["running"] for worker in silent)
    one = len(silent) == 1
    yield Alert(
        "silent",
        f"{'Worker' if one else 'Workers'} {names} {'gives' if one else 'give'} no sign of life.",
        "Look whether the machine is up and reaches the database. "
        + (
            f"{wording.count(running, 'job')} of {'it' if one else 'theirs'} will be started"
            " elsewhere by the next worker that looks."
            if running
            else "No job is lost by it."
        ),
        since=min(worker["last_heartbeat"] for worker in silent),
        link=("workers", "Workers"),
    )


def _stuck(found: dict[str, Any]) -> Iterator[Alert]:
    stale, recovered = found["stale"], found["recovered"]
    told = []
    if stale:
        told.append(f"{wording.count(stale, 'job')} that {_verb(stale, 'has', 'have')} started "
                    f"{_verb(stale, 'gives', 'give')} no sign of life")  # fmt: skip
    if recovered:
        told.append(f"{wording.count(recovered, 'job')} that got stuck or lost "
                    f"{_verb(recovered, 'its', 'their')} worker "
                    f"{_verb(recovered, 'waits', 'wait')} for the next attempt")  # fmt: skip
    if told:
        yield Alert(
            "stuck",
            f"{', and '.join(told)}.",
            "What does not go on is started again by itself; if it is always the same kind or"
            " stage, look there.",
            link=("stuck", "What is stuck"),
        )


def _queues(rows: Sequence[Standing]) -> Iterator[Alert]:
    """One for all queues of which the same is to be said."""
    long_pause, long_wait = LONG_PAUSE.total_seconds(), LONG_WAIT.total_seconds()
    paused = [row for row in rows if waiting([row]) and (row.paused_seconds or 0) >= long_pause]
    if paused:
        names, longest = (
            [row.name for row in paused],
            max(row.paused_seconds or 0 for row in paused),
        )
        one = len(paused) == 1
        yield Alert(
            "paused",
            f"Queue{'' if one else 's'} {_listed(names)} {'has' if one else 'have'} been paused for"
            f" {wording.seconds(longest)}, and {_waiting(waiting(paused))}.",
            f"Resume {'it' if one else 'them'}: `penstock resume {names[0] if one else 'QUEUE'}`.",
            link=_to_queues(names),
        )
    idle = [row for row in rows if row.unexplained and (row.waits_seconds or 0) >= long_wait]
    if idle:
        names, longest = [row.name for row in idle], max(row.waits_seconds or 0 for row in idle)
        yield Alert(
            "unexplained",
            f"{_waiting(waiting(idle))} in queue{'' if len(idle) == 1 else 's'} {_listed(names)}"
            f" for {wording.seconds(longest)}, although nothing stops them.",
            "The workers are busy with other queues: start more of them.",
            link=_to_queues(names),
        )


def _receivers(found: dict[str, Any]) -> Iterator[Alert]:
    for host in found["failing_hosts"]:
        yield Alert(
            f"host-{host['host']}",
            f"{host['host']} has not taken {wording.count(host['count'], 'webhook')}, each tried"
            " three times or more.",
            "Look at the receiver; they are sent again for days, and `penstock webhooks` lists"
            " them.",
            since=host["since"],
        )


def _history(found: dict[str, Any], room: timedelta | None) -> Iterator[Alert]:
    wanted = timedelta(seconds=found["room_seconds"])
    if room is not None and room < wanted / 2:
        yield Alert(
            "history",
            "The tables for finished jobs are made for"
            f" {wording.seconds(max(0.0, room.total_seconds()))} ahead only, and not for"
            f" {wording.seconds(wanted.total_seconds())}.",
            "Keep a worker running: it makes them.",
        )


def _waiting(jobs: Count) -> str:
    return f"{jobs.named('job')} {'waits' if str(jobs) == '1' else 'wait'}"


def _to_queues(names: Sequence[str]) -> tuple[str, str]:
    return (f"queues/{names[0]}", f"Queue {names[0]}") if len(names) == 1 else ("queues", "Queues")


def _listed(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _verb(count: int, one: str, many: str) -> str:
    return one if count == 1 else many
