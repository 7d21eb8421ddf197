"""`penstock dev`: everything in one process, on the embedded database."""

import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.console import Json, print_json
from penstock.cli.serve import PORT, Host, Port, require_extra
from penstock.db import migrate
from penstock.db.connect import open_connection, place
from penstock.errors import Misconfigured

if TYPE_CHECKING:
    from penstock.app import Penstock
    from penstock.settings import Settings

_DEMO = Path(__file__).with_name("demo.toml")
# How the demo's file names the address of its model.
_MODEL = "PENSTOCK_DEMO_MODEL"
_TOKENS_PER_SECOND = 12.0


def dev(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="APP",
            help="module:app, or a penstock.toml; without it, the penstock.toml of this folder, or "
            "a demo with a simulated model.",
        ),
    ] = None,
    *,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    as_json: Json = False,
) -> None:
    """Run the API and a worker in one process until told to stop (Ctrl-C)."""
    require_extra()
    from penstock.cli.serving import listen, run, url_of

    model = _free_port() if app is None and not Path("penstock.toml").exists() else None
    found = _find(app, model)
    if not found.kinds:
        raise Misconfigured(
            "The app declares no job kind, so there is nothing to run: `@app.job(queue=...)`."
        )

    @asynccontextmanager
    async def beside() -> AsyncIterator[None]:
        await _bring_up(found.settings)
        if model is None:
            yield
            return
        async with _simulated(model):
            yield

    with listen(host, port) as sock:
        run(
            found,
            sock,
            worker=True,
            beside=beside,
            on_ready=lambda dsn: _greet(found, url_of(sock), dsn, as_json=as_json),
        )


def _find(name: str | None, model: int | None) -> "Penstock":
    from penstock.app.find import find_app

    if model is None:
        return find_app(name)
    from penstock.app.toml import load

    os.environ[_MODEL] = f"http://127.0.0.1:{model}"
    return load(_DEMO)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@asynccontextmanager
async def _simulated(port: int) -> AsyncIterator[None]:
    from penstock.providers.simulated.model import Model
    from penstock.providers.simulated.options import Options

    model = Model(Options(port=port, latency=0.5, tokens_per_second=_TOKENS_PER_SECOND))
    model.open()
    try:
        yield
    finally:
        model.close()
        await model.gone()


async def _bring_up(settings: "Settings") -> None:
    """The schema, on a server too: it is a developer's. The embedded one is brought up anyway."""
    if settings.dsn is not None:
        conn = await open_connection(settings.dsn)
        try:
            await migrate.up(conn)
        finally:
            await conn.close()


def _greet(app: "Penstock", url: str, dsn: str, *, as_json: bool) -> None:
    from penstock.dashboard.session import Doors
    from penstock.providers.roots import read_roots

    roots = read_roots(app.settings)
    link = f"{url}/login?code={Doors(roots).make_link()}"
    # A secret that was set is known to whoever set it; one that was made here is not yet.
    secret = "" if app.settings.secrets else roots.first
    kinds = sorted(app.kinds)
    if as_json:
        told: dict[str, Any] = {"url": url, "login": link, "docs": f"{url}/docs"}
        print_json(
            {
                **told,
                "database": place(dsn),
                "kinds": kinds,
                **({"secret": secret} if secret else {}),
            }
        )
    else:
        key = secret or "$PENSTOCK_SECRET"
        kind, payload = (
            ("feedback", '{"answer": "6 times 7 is 42"}')
            if "feedback" in kinds
            else (
                kinds[0],
                "{}",
            )
        )
        body = f'{{"kind": "{kind}", "payload": {payload}}}'
        typer.echo(f"Open the dashboard (this link signs you in, once): {link}")
        typer.echo(f"API and worker at {url}, its documents at {url}/docs.")
        typer.echo(f"The database: {place(dsn)}. Kinds of job: {', '.join(kinds)}.")
        typer.echo(f"The operator's key: {key}")
        typer.echo("Try:")
        typer.echo(f'  curl -H "Authorization: Bearer {key}" -d {shlex.quote(body)} {url}/v1/jobs')
    sys.stdout.flush()
