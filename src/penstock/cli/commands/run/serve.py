"""`penstock serve`: the HTTP API."""

import importlib.util
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output.console import Json, print_json
from penstock.db.connections.display_address import place
from penstock.errors import Misconfigured

if TYPE_CHECKING:
    from penstock.client.app import Penstock

PORT = 8484
_LARGEST_PORT = 65_535
_MOST_PROCESSES = 64
_EXTRA = ("starlette", "uvicorn", "httptools", "python_multipart", "jinja2")

Host = Annotated[str, typer.Option(metavar="H", help="Address to listen at.")]
Port = Annotated[
    int, typer.Option(metavar="P", min=0, max=_LARGEST_PORT, help="Port; 0 takes any.")
]


def serve(  # noqa: PLR0913  # one per option of the contract
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="APP",
            help="module:app, or a penstock.toml; without it, the penstock.toml of this folder, or "
            "what the database knows: then payloads are checked when their jobs run.",
        ),
    ] = None,
    *,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    processes: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=_MOST_PROCESSES, help="Processes on one address."),
    ] = 1,
    worker: Annotated[bool, typer.Option("--worker", help="Run the app's jobs, too.")] = False,
    inherit: Annotated[str | None, typer.Option(hidden=True)] = None,
    as_json: Json = False,
) -> None:
    """Serve the HTTP API until told to stop (SIGTERM, Ctrl-C): open requests may end."""
    require_extra()
    if inherit is not None:
        _serve_inherited(app, inherit, worker=worker)
        return
    from penstock.cli.serving.serving import listen, run, url_of

    if processes == 1:
        found = _find(app, worker=worker)
        with listen(host, port) as sock:
            run(
                found,
                sock,
                worker=worker,
                on_ready=lambda dsn: greet(url_of(sock), dsn, 1, worker=worker, as_json=as_json),
            )
        return
    from penstock.cli.serving.processes import Children

    words = ["serve", *([app] if app else []), *(["--worker"] if worker else [])]
    with listen(host, port) as sock:
        children = Children(words, sock, processes)
        code = children.run(
            lambda: greet(url_of(sock), None, processes, worker=worker, as_json=as_json)
        )
    if code:
        raise typer.Exit(code)


def _serve_inherited(app: str | None, inherit: str, *, worker: bool) -> None:
    """One of several processes: the socket, and the pipes to whoever started it, are there."""
    from penstock.cli.serving.serving import run

    number, life, tell = (int(one) for one in inherit.split(","))
    with socket.socket(fileno=number) as sock:
        run(
            _find(app, worker=worker),
            sock,
            worker=worker,
            on_ready=lambda _: os.close(tell) if os.write(tell, b"+") else None,
            life=life,
        )


def require_extra() -> None:
    """A worker, or an app that only submits, needs nothing of it."""
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise Misconfigured(
            f"The HTTP API needs {', '.join(missing)}, not installed here: "
            "pip install 'penstock[server]' brings all of it."
        )


def _find(name: str | None, *, worker: bool) -> "Penstock":
    from penstock.client.app import Penstock
    from penstock.client.config.find import TOML, find_app

    if name is None and not (Path.cwd() / TOML).exists():
        if worker:
            raise typer.BadParameter(
                "needs an APP: a worker runs the handlers that it declares.", param_hint="--worker"
            )
        return Penstock(name="penstock serve")
    found = find_app(name)
    if worker and not found.kinds:
        raise Misconfigured(
            "The app declares no job kind, so there is nothing for --worker: `@app.job(queue=...)`."
        )
    return found


def greet(url: str, dsn: str | None, processes: int, *, worker: bool, as_json: bool) -> None:
    """Whoever reads this may call at once."""
    where = None if dsn is None else place(dsn)
    if as_json:
        print_json(
            {"url": url, "docs": f"{url}/docs", "processes": processes, "worker": worker}
            | ({} if where is None else {"database": where})
        )
    else:
        number = "" if processes == 1 else f", {processes} processes"
        beside = ", with a worker" if worker else ""
        at = "" if where is None else f", on {where}"
        typer.echo(f"Serving the API at {url}{number}{beside}{at}. Its documents: {url}/docs")
    sys.stdout.flush()
