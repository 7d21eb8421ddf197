"""One queue: declared beside in force, changed while it runs; stopped, and let go on."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from penstock.dashboard.components import options
from penstock.dashboard.components.figures import by_hour
from penstock.dashboard.components.queue_state import Standing
from penstock.dashboard.frame import action, backend, go, page, render
from penstock.dashboard.pages.queues.queues import is_troubled, stand
from penstock.errors import Refused

HOURS = 24
REASON_LONGEST = 500


@page("/queues/{name}")
async def show(request: Request) -> Response:
    return await _page(request, await _read(request))


@action("/queues/{name}/edit")
async def edit(request: Request, form: FormData) -> Response:
    """Limits, changed while it runs; what cannot be is said beside its field."""
    queue = await _read(request)
    changed, problems = options.read(options.QUEUE, queue, form)
    if not problems and not changed:
        return _back(request, "Nothing was changed.")
    if not problems:
        try:
            await backend(request).engine.queues.edit(queue["name"], **changed)
        except Refused as error:
            if error.field not in options.typed(options.QUEUE, form):
                raise
            problems[error.field] = options.beside(error)
        else:
            await backend(request).engine.jobs.wake([queue["name"]])
            told = options.told(options.QUEUE, changed)
            return _back(request, f"{told}. It counts at once, and over restarts.")
    return await _page(
        request,
        queue,
        status=HTTPStatus.UNPROCESSABLE_ENTITY,
        typed=options.typed(options.QUEUE, form),
        problems=problems,
    )


@action("/queues/{name}/reset")
async def reset(request: Request, form: FormData) -> Response:
    queue = await _read(request)
    if not queue["overrides"]:
        return _back(request, "Nothing was edited: the queue is as declared.")
    if form.get("confirm") != "yes":
        return _ask_reset(request, queue)
    await backend(request).engine.queues.reset(queue["name"])
    await backend(request).engine.jobs.wake([queue["name"]])
    return _back(request, f"Queue {queue['name']} is as declared again.")


@action("/queues/{name}/pause")
async def pause(request: Request, form: FormData) -> Response:
    queue = await _read(request)
    await backend(request).engine.queues.pause(queue["name"], reason=_reason(form))
    stands = _stands(queue)
    return _back(
        request,
        f"Queue {queue['name']} is paused: {stands.queued} queued, "
        f"{stands.running + stands.awaiting} still running. Nothing starts until you resume it.",
    )


@action("/queues/{name}/resume")
async def resume(request: Request, _form: FormData) -> Response:
    queue = await _read(request)
    engine = backend(request).engine
    await engine.queues.resume(queue["name"])
    await engine.jobs.wake([queue["name"]])
    after = await _read(request)
    if after["circuit"]["state"] == "open":
        return _back(request, f"The pause is over, but jobs still wait: {after['message']}.")
    return _back(request, f"Queue {queue['name']} goes on: {_stands(after).queued} queued.")


@action("/queues/{name}/open")
async def open_circuit(request: Request, form: FormData) -> Response:
    queue = await _read(request)
    await backend(request).engine.circuits.open(queue["name"], reason=_reason(form))
    return _back(
        request,
        f"The circuit of queue {queue['name']} is open: nothing starts, and no job tries the"
        " provider, until you close it.",
    )


@action("/queues/{name}/close")
async def close_circuit(request: Request, _form: FormData) -> Response:
    queue = await _read(request)
    await backend(request).engine.circuits.close(queue["name"])
    if queue["paused_at"]:
        return _back(request, "The circuit is closed. The queue is still paused: resume it, too.")
    return _back(
        request,
        f"The circuit of queue {queue['name']} is closed: jobs start as its limits allow.",
    )


async def _read(request: Request) -> dict[str, Any]:
    return await backend(request).engine.lists.queue(request.path_params["name"])


async def _page(
    request: Request,
    queue: dict[str, Any],
    *,
    status: int = HTTPStatus.OK,
    typed: Mapping[str, str] | None = None,
    problems: Mapping[str, str] | None = None,
) -> Response:
    engine = backend(request).engine
    stands = _stands(queue)
    metrics = await engine.hourly.metrics(HOURS, queue=queue["name"])
    lines = options.lines(options.QUEUE, queue, queue["in_force"], typed=typed, problems=problems)
    return render(
        request,
        "queues/queue.html",
        status=status,
        queue=queue,
        stands=stands,
        is_troubled=is_troubled(stands),
        says=_says(queue, stands),
        lines=lines,
        problems=problems or {},
        hours=by_hour(metrics["throughput"]),
        classes=_classes(metrics["timeouts"]),
    )


def _ask_reset(request: Request, queue: dict[str, Any]) -> Response:
    return render(
        request,
        "parts/confirm.html",
        section="Queues",
        heading=f"Go back to what is declared for queue {queue['name']}?",
        says=[
            *options.ways_back(options.QUEUE, queue, queue["in_force"]),
            "It counts at once for what waits; jobs that run go on.",
        ],
        target=f"queues/{quote(queue['name'], safe='')}/reset",
        fields={},
        button="Go back to what is declared",
        back=f"queues/{quote(queue['name'], safe='')}",
    )


def _stands(queue: dict[str, Any]) -> Standing:
    [row] = stand([queue], queue["now"])
    return row


def _says(queue: dict[str, Any], stands: Standing) -> str | None:
    """Why something waits; or, while nothing does, what would keep it waiting."""
    if stands.reason:
        return stands.reason
    if queue["paused_at"]:
        return "Nothing starts until it is resumed; what runs goes on."
    return f"{queue['message']}." if queue["message"] else None


def _classes(failures: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Why starts failed, all hours together; the most frequent first."""
    found: dict[str, int] = {}
    for one in failures:
        found[one["class"]] = found.get(one["class"], 0) + one["count"]
    return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))


def _reason(form: FormData) -> str | None:
    return str(form.get("reason", "")).strip()[:REASON_LONGEST] or None


def _back(request: Request, notice: str) -> Response:
    name = request.path_params["name"]
    return go(request, f"queues/{quote(name, safe='')}", notice=notice)
