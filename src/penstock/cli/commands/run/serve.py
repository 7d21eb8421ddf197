"""`penstock serve`: the HTTP API."""

import importlib.util
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output.console import Json, answer
from penstock.db.connections.display_address import display_address
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
            "the kinds in the database: then payloads are checked when their jobs run.",
        ),
    ] = None,
    *,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    processes: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=_MOST_PROCESSES, help="Processes on one address."),
    ] = 1,
    worker: Annotated[bool, typer.Option("--worker", help="Also run the app's jobs.")] = False,
    inherit: Annotated[str | None, typer.Option(hidden=True)] = None,
    as_json: Json = False,
) -> None:
    """Serve the HTTP API until stopped (SIGTERM, Ctrl-C); open requests may finish first."""
    require_extra()
    from penstock.cli.serving.serving import listen, run, url_of

    if inherit is not None:
        # One of several processes: it inherits the socket, and pipes to its parent process.
        number, life, ready = (int(number) for number in inherit.split(","))
        with socket.socket(fileno=number) as sock:
            run(
                _find(app, worker=worker),
                sock,
                worker=worker,
                on_ready=lambda _: os.close(ready) if os.write(ready, b"+") else None,
                life=life,
            )
        return

    def greet(dsn: str | None) -> None:
        _greet(url_of(sock), dsn, processes, worker=worker, as_json=as_json)

    if processes == 1:
        loaded = _find(app, worker=worker)
        with listen(host, port) as sock:
            run(loaded, sock, worker=worker, on_ready=greet)
        return
    from penstock.cli.serving.processes import Children

    words = ["serve", *([app] if app else []), *(["--worker"] if worker else [])]
    with listen(host, port) as sock:
        code = Children(words, sock, processes).run(lambda: greet(None))
    if code:
        raise typer.Exit(code)


def require_extra() -> None:
    """Refuse to serve without the extra `server`, which workers and plain submits do not need."""
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise Misconfigured(
            f"The HTTP API needs {', '.join(missing)}, which is not installed here: "
            "pip install 'penstock[server]' installs all it needs."
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
    loaded = find_app(name)
    if worker:
        require_kinds(loaded, "for --worker")
    return loaded


def require_kinds(app: "Penstock", purpose: str = "to run") -> None:
    """Refuse an app without a job kind."""
    if not app.kinds:
        raise Misconfigured(
            f"The app declares no job kind, so there is nothing {purpose}: `@app.job(queue=...)`."
        )


def _greet(url: str, dsn: str | None, processes: int, *, worker: bool, as_json: bool) -> None:
    """Print the address, when the server accepts requests."""
    where = None if dsn is None else display_address(dsn)
    known = {"url": url, "docs": f"{url}/docs", "processes": processes, "worker": worker}
    number = "" if processes == 1 else f", {processes} processes"
    beside = ", with a worker" if worker else ""
    at = "" if where is None else f", on {where}"
    answer(
        known if where is None else known | {"database": where},
        lambda _: f"Serving the API at {url}{number}{beside}{at}. Its documents: {url}/docs",
        as_json=as_json,
    )
