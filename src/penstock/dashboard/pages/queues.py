"""Pages of queues: the list, and one queue with forms to edit, pause and resume it."""

from collections import Counter, defaultdict
from functools import partial
from typing import Any
from urllib.parse import quote

from penstock.dashboard.components import options
from penstock.dashboard.components.queue_state import QueueState, queue_states
from penstock.dashboard.frame import (
    FormData,
    HTTPStatus,
    Request,
    Response,
    action,
    backend,
    confirm,
    go,
    page,
    render,
)

# With fewer queues the page needs no filter.
FILTER_FROM = 10
HOURS = 24
REASON_LONGEST = 500


@page("/queues")
async def show_all(request: Request) -> Response:
    answer = await backend(request).engine.lists.standings()
    rows = queue_states(answer["queues"], answer["now"])
    wanted = request.query_params.get("q", "").strip()
    only = request.query_params.get("only") == "trouble"
    filtered = bool(wanted) or only
    return render(
        request,
        "queues/queues.html",
        rows=[
            row
            for row in rows
            if wanted.lower() in row.name.lower() and (row.is_troubled or not only)
        ],
        total=len(rows),
        troubled=sum(row.is_troubled for row in rows),
        wanted=wanted,
        only=only,
        filtered=filtered,
        with_filter=len(rows) >= FILTER_FROM or filtered,
        options={option.key: option for option in options.QUEUE},
    )


@page("/queues/{name}")
async def show(request: Request, name: str) -> Response:
    return await _page(request, await _read(request, name))


@action("/queues/{name}/edit")
async def edit(request: Request, form: FormData, name: str) -> Response:
    """Change the limits; a problem is shown beside its field."""
    queue, engine = await _read(request, name), backend(request).engine
    edit = options.read(options.QUEUE, queue, form)
    await edit.save(partial(engine.queues.edit, name))
    if edit.problems:
        return await _page(request, queue, edit)
    if not edit.changed:
        return _back(request, "Nothing was changed.")
    await engine.jobs.wake([name])
    return _back(request, f"{edit.words(options.QUEUE)}. This applies at once and after restarts.")


@action("/queues/{name}/reset")
async def reset(request: Request, form: FormData, name: str) -> Response:
    queue, engine = await _read(request, name), backend(request).engine
    if not queue["overrides"]:
        return _back(request, "Nothing to reset: the queue is as declared.")
    if form.get("confirm") != "yes":
        return confirm(
            request,
            section="Queues",
            heading=f"Reset queue {name} to its declared options?",
            effects=[
                *options.changes_back(options.QUEUE, queue, queue["in_force"]),
                "The change applies at once to waiting jobs; running jobs continue.",
            ],
            target=f"{_at(request)}/reset",
            button="Reset to declared options",
            back=_at(request),
        )
    await engine.queues.reset(name)
    await engine.jobs.wake([name])
    return _back(request, f"Queue {name} is as declared again.")


@action("/queues/{name}/pause")
async def pause(request: Request, form: FormData, name: str) -> Response:
    queue = await _read(request, name)
    await backend(request).engine.queues.pause(name, reason=_reason(form))
    state = _state(queue)
    return _back(
        request,
        f"Queue {name} is paused: {state.queued} queued, "
        f"{state.running + state.awaiting} still running. Nothing starts until you resume it.",
    )


@action("/queues/{name}/resume")
async def resume(request: Request, _form: FormData, name: str) -> Response:
    await backend(request).engine.queues.resume(name)
    await backend(request).engine.jobs.wake([name])
    queue = await _read(request, name)
    if queue["circuit"]["state"] == "open":
        return _back(request, f"The queue is resumed, but jobs still wait: {queue['message']}.")
    return _back(request, f"Queue {name} is resumed: {_state(queue).queued} queued.")


@action("/queues/{name}/open")
async def open_circuit(request: Request, form: FormData, name: str) -> Response:
    await backend(request).engine.circuits.open(name, reason=_reason(form))
    return _back(
        request,
        f"The circuit of queue {name} is open: no job starts or probes the provider until you"
        " close it.",
    )


@action("/queues/{name}/close")
async def close_circuit(request: Request, _form: FormData, name: str) -> Response:
    queue = await _read(request, name)
    await backend(request).engine.circuits.close(name)
    if queue["paused_at"]:
        return _back(request, "The circuit is closed. The queue is still paused; resume it, too.")
    return _back(
        request,
        f"The circuit of queue {name} is closed: jobs start as its limits allow.",
    )


async def _read(request: Request, name: str) -> dict[str, Any]:
    return await backend(request).engine.lists.queue(name)


async def _page(
    request: Request, queue: dict[str, Any], edit: options.Edit | None = None
) -> Response:
    metrics = await backend(request).engine.hourly.metrics(HOURS, queue=queue["name"])
    classes = Counter[str]()
    for row in metrics["timeouts"]:
        classes[row["class"]] += row["count"]
    state = _state(queue)
    reason = state.reason
    # If no job waits: the reason for which new jobs would wait.
    if reason is None and queue["paused_at"]:
        reason = "No job starts until the queue is resumed; running jobs continue."
    elif reason is None and queue["message"]:
        reason = f"{queue['message']}."
    return render(
        request,
        "queues/queue.html",
        status=HTTPStatus.OK if edit is None else HTTPStatus.UNPROCESSABLE_ENTITY,
        queue=queue,
        summary=state,
        reason=reason,
        lines=options.lines(options.QUEUE, queue, queue["in_force"], edit),
        problems=edit.problems if edit else {},
        hours=_by_hour(metrics["throughput"]),
        classes=sorted(classes.items(), key=lambda pair: (-pair[1], pair[0])),
    )


def _by_hour(throughput: list[dict[str, Any]]) -> list[tuple[str, Counter[str]]]:
    """Count the outcomes of each hour, the latest first; hours without any have no row.

    `again`: attempts that did not finish their job: retried, deferred, released and so on.
    `succeeded_ms`: the total duration of the last attempts of succeeded jobs.
    """
    hours: dict[str, Counter[str]] = defaultdict(Counter)
    for row in throughput:
        is_final = row["outcome"] in ("succeeded", "failed", "cancelled")
        hours[row["hour"]][row["outcome"] if is_final else "again"] += row["count"]
        if row["outcome"] == "succeeded":
            hours[row["hour"]]["succeeded_ms"] += row["total_duration_ms"]
    return sorted(hours.items(), reverse=True)


def _state(queue: dict[str, Any]) -> QueueState:
    [state] = queue_states([queue], queue["now"])
    return state


def _reason(form: FormData) -> str | None:
    return str(form.get("reason", "")).strip()[:REASON_LONGEST] or None


def _at(request: Request) -> str:
    return f"queues/{quote(request.path_params['name'], safe='')}"


def _back(request: Request, notice: str) -> Response:
    return go(request, _at(request), notice=notice)
