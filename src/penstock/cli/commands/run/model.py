"""`penstock model`: a simulated model, or a small real one, for development and tests."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.settings import duration
from penstock.base.wording import count
from penstock.cli.output.console import Json, answer, settings
from penstock.cli.serving.loop import run_loop, stop_signals
from penstock.errors import Misconfigured

if TYPE_CHECKING:
    from penstock.models.simulated.faults.orders import Order
    from penstock.models.simulated.options import Options
    from penstock.models.simulated.server import Server

_OLLAMA_PORT = 11_434
_LARGEST_PORT = 65_535


def model(  # noqa: PLR0913  # one per option of the model
    *,
    host: Annotated[str, typer.Option(metavar="H", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="P", min=0, max=_LARGEST_PORT, help="Port, by default Ollama's; 0 takes any."
        ),
    ] = _OLLAMA_PORT,
    control: Annotated[
        int,
        typer.Option(
            metavar="P",
            min=0,
            max=_LARGEST_PORT,
            help="Port for commands, open also while the model refuses; 0 takes any.",
        ),
    ] = 0,
    latency: Annotated[
        str, typer.Option(metavar="S", help="Time until the first token, like 0.5s.")
    ] = "0",
    tokens_per_second: Annotated[
        float | None, typer.Option(metavar="N", help="Speed; by default as fast as it can.")
    ] = None,
    tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Length of an answer.")] = 40,
    slots: Annotated[int, typer.Option(metavar="N", min=1, help="Answers at once.")] = 1,
    max_queue: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="How many calls may wait; no limit by default."),
    ] = None,
    num_ctx: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many tokens a prompt may have.")
    ] = 4_096,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="A model that exists; by default every name."),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Require this key; 401 without.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:k=v,...]",
            help="Start with this fault, like status:code=503,times=3; may be repeated.",
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append a line of JSON for each call.")
    ] = None,
    real: Annotated[
        bool, typer.Option("--real", help="A small real model by llama.cpp: the extra `model`.")
    ] = False,
    gguf: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Its file; by default the one in PENSTOCK_HOME/model."),
    ] = None,
    threads: Annotated[
        int, typer.Option(metavar="N", min=1, help="Threads of the real model.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Answer like Ollama and OpenAI, with faults on request, until stopped (SIGTERM, Ctrl-C)."""
    from penstock.models.simulated.faults.orders import order_written
    from penstock.models.simulated.options import Options

    if tokens_per_second is not None and tokens_per_second <= 0:
        raise typer.BadParameter("must be more than 0.", param_hint="--tokens-per-second")
    if gguf is not None and not real:
        raise typer.BadParameter("needs --real.", param_hint="--gguf")
    if real:
        given = {
            "--fault": bool(fault),
            "--latency": latency != "0",
            "--tokens-per-second": tokens_per_second is not None,
        }
        for name in (name for name, is_given in given.items() if is_given):
            raise typer.BadParameter(f"--real and {name} exclude one another.")
    orders = [order_written(text) for text in fault or ()]
    options = Options(
        host=host,
        port=port,
        control=control,
        latency=duration(latency, field="--latency"),
        tokens_per_second=tokens_per_second,
        tokens=tokens,
        slots=slots,
        max_queue=max_queue,
        models=tuple(names) if names else None,
        num_ctx=num_ctx,
        api_key=api_key,
        log=log,
    )
    file = (gguf or _fetched()) if real else None
    run_loop(_serve(options, orders, file, threads, as_json=as_json))


async def _serve(
    options: "Options", orders: list["Order"], gguf: Path | None, threads: int, *, as_json: bool
) -> None:
    server = _server(options, gguf, threads)
    stop = asyncio.Event()
    try:
        with stop_signals(lambda _: stop.set()):
            server.open()
            for order in orders:
                server.take_order(order)
            _greet(server, "Real" if gguf else "Simulated", as_json=as_json)
            await stop.wait()
        report = server.report()
    finally:
        server.close()
        await server.gone()
    total, most = report["total"], report["most_at_once"]
    answer(
        {"calls": total, "most_at_once": most},
        lambda _: f"Stopped by a signal: {count(total, 'call')}, at most {most} at once.",
        as_json=as_json,
    )


def _server(options: "Options", gguf: Path | None, threads: int) -> "Server":
    if gguf is None:
        from penstock.models.simulated.model import Model

        return Model(options)
    from penstock.models.simulated.real.model import RealModel

    return RealModel(options, gguf, threads)


def _fetched() -> Path:
    from penstock.models.simulated.real.model import llama_cpp

    llama_cpp()  # first: if package and file are missing, the error is about the package
    folder = settings().home / "model"
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise Misconfigured(
            f"There is no model file in {folder}. Name one with --gguf, or, in a checkout of "
            "Penstock, fetch a small one with `make model`."
        )
    return files[0]


def _greet(server: "Server", kind: str, *, as_json: bool) -> None:
    names = server.options.models
    which = f" {', '.join(names)}" if names else ""
    answer(
        {"url": server.url, "control": server.control_url, "models": names},
        lambda _: (
            f"{kind} model{which} at {server.url} (Ollama: /api, OpenAI: /v1).\n"
            f"Commands at {server.control_url}: /_calls /_order /_heal /_stop /_start"
        ),
        as_json=as_json,
    )
