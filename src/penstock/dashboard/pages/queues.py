"""All queues, and which need somebody; one closely: changed while it runs, stopped, let go on."""

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

# Fewer than that are seen at a glance.
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
    """Limits, changed while it runs; a problem is shown beside its field."""
    queue, engine = await _read(request, name), backend(request).engine
    edit = options.read(options.QUEUE, queue, form)
    await edit.save(partial(engine.queues.edit, name))
    if edit.problems:
        return await _page(request, queue, edit)
    if not edit.changed:
        return _back(request, "Nothing was changed.")
    await engine.jobs.wake([name])
    return _back(request, f"{edit.words(options.QUEUE)}. It counts at once, and over restarts.")


@action("/queues/{name}/reset")
async def reset(request: Request, form: FormData, name: str) -> Response:
    queue, engine = await _read(request, name), backend(request).engine
    if not queue["overrides"]:
        return _back(request, "Nothing was edited: the queue is as declared.")
    if form.get("confirm") != "yes":
        return confirm(
            request,
            section="Queues",
            heading=f"Go back to what is declared for queue {name}?",
            effects=[
                *options.changes_back(options.QUEUE, queue, queue["in_force"]),
                "It counts at once for what waits; jobs that run go on.",
            ],
            target=f"{_at(request)}/reset",
            button="Go back to what is declared",
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
        return _back(request, f"The pause is over, but jobs still wait: {queue['message']}.")
    return _back(request, f"Queue {name} goes on: {_state(queue).queued} queued.")


@action("/queues/{name}/open")
async def open_circuit(request: Request, form: FormData, name: str) -> Response:
    await backend(request).engine.circuits.open(name, reason=_reason(form))
    return _back(
        request,
        f"The circuit of queue {name} is open: nothing starts, and no job tries the"
        " provider, until you close it.",
    )


@action("/queues/{name}/close")
async def close_circuit(request: Request, _form: FormData, name: str) -> Response:
    queue = await _read(request, name)
    await backend(request).engine.circuits.close(name)
    if queue["paused_at"]:
        return _back(request, "The circuit is closed. The queue is still paused: resume it, too.")
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
    # While nothing waits: what would keep it waiting.
    if reason is None and queue["paused_at"]:
        reason = "Nothing starts until it is resumed; what runs goes on."
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
    """What finished in each hour, the latest first; an hour in which nothing did has no row.

    `again`: attempts after which the job went on: tried again, put off, released. `succeeded_ms`:
    how long what succeeded took, from the start of its last attempt.
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
