"""`penstock dev`: everything for a developer, on the embedded database."""

import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from penstock.cli.commands.run.serve import PORT, Host, Port, require_extra
from penstock.cli.output.console import DEMO, Json, print_json, settings
from penstock.db.connections.connect import open_connection
from penstock.db.connections.display_address import place
from penstock.db.embedded.database import make_home
from penstock.db.schema import migrations
from penstock.errors import Misconfigured

if TYPE_CHECKING:
    from penstock.base.settings import Settings
    from penstock.client.app import Penstock

_DEMO = Path(__file__).parents[2] / "demo.toml"
# How the demo's file names the address of its model.
_MODEL = "PENSTOCK_DEMO_MODEL"
_TOKENS_PER_SECOND = 12.0
# A job that everybody can submit: of the demo, in a line that can be copied.
_EXAMPLE = ("feedback", '{"answer": "6 times 7 is 42"}')


class Inherited(NamedTuple):
    """Pipes to the process that started this one."""

    life: int
    """Its end is ours."""
    tell: int
    """Takes a byte when we serve."""


def dev(  # noqa: PLR0913  # one per option
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="APP",
            help="module:app, or a penstock.toml; without it, the penstock.toml of this folder, or "
            "the demo: five systems with visitors and a simulated model.",
        ),
    ] = None,
    *,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Start the app anew when a .py or .toml of it changes."),
    ] = False,
    inherit: Annotated[str | None, typer.Option(hidden=True)] = None,
    as_json: Json = False,
) -> None:
    """Run API, dashboard and worker until told to stop (Ctrl-C); without an app, the demo."""
    require_extra()
    if inherit is not None:
        _run_inherited(app, inherit, as_json=as_json)
        return
    if app is not None or Path("penstock.toml").exists():
        if reload:
            _reload(app, host, port, as_json=as_json)
        else:
            _run_app(app, host, port, as_json=as_json)
        return
    if reload:
        raise typer.BadParameter(
            "needs an APP, or a penstock.toml in this folder.", param_hint="--reload"
        )
    from penstock.cli.serving import demo as systems

    folder = systems.find_folder()
    why_not = systems.why_not(folder, settings())
    _move_home(settings())
    if folder is None or why_not is not None:
        _run_small(host, port, why_not or "", as_json=as_json)
        return
    systems.run(
        folder,
        _DEMO,
        host,
        port,
        lambda app, url, dsn, sites: _greet(app, url, dsn, sites=sites, as_json=as_json),
    )


def _move_home(found: "Settings") -> None:
    """Into a folder of the demo's own; git is told of neither, an app may use the outer one."""
    home = found.home / DEMO
    os.environ["PENSTOCK_HOME"] = str(home)
    if found.dsn is None:
        # Where it cannot be, the database's start says so better.
        with suppress(OSError):
            for folder in (found.home, home):
                make_home(folder)


def _reload(name: str | None, host: str, port: int, *, as_json: bool) -> None:
    from penstock.cli.serving.reload import run
    from penstock.cli.serving.serving import listen

    words = ["dev", *([name] if name else []), *(["--json"] if as_json else [])]
    with listen(host, port) as sock:
        run(words, sock, Path.cwd(), settings())


def _run_inherited(name: str | None, inherit: str, *, as_json: bool) -> None:
    """The app of a `dev --reload`, which holds the address and the database."""
    number, life, tell, greets = (int(one) for one in inherit.split(","))
    with socket.socket(fileno=number) as sock:
        _run_on(
            _find(name), sock, as_json=as_json, greets=bool(greets), inherited=Inherited(life, tell)
        )


def _run_app(name: str | None, host: str, port: int, *, as_json: bool) -> None:
    from penstock.cli.serving.serving import listen

    found = _find(name)
    with listen(host, port) as sock:
        _run_on(found, sock, as_json=as_json)


def _find(name: str | None) -> "Penstock":
    from penstock.client.config.find import find_app

    found = find_app(name)
    if not found.kinds:
        raise Misconfigured(
            "The app declares no job kind, so there is nothing to run: `@app.job(queue=...)`."
        )
    return found


def _run_on(
    found: "Penstock",
    sock: socket.socket,
    *,
    as_json: bool,
    greets: bool = True,
    inherited: Inherited | None = None,
) -> None:
    from penstock.cli.serving.serving import run, url_of

    @asynccontextmanager
    async def beside() -> AsyncIterator[None]:
        await _bring_up(found.settings)
        yield

    def greet(dsn: str) -> None:
        if greets:
            _greet(found, url_of(sock), dsn, as_json=as_json)
        else:
            typer.echo(f"Running again at {url_of(sock)}.", err=True)
        if inherited is not None:
            os.write(inherited.tell, b"+")

    life = None if inherited is None else inherited.life
    run(found, sock, worker=True, beside=beside, on_ready=greet, life=life)


def _run_small(host: str, port: int, why: str, *, as_json: bool) -> None:
    """The demo without the five systems: one kind of job, and the model in this process."""
    from penstock.cli.serving.serving import listen, run, url_of
    from penstock.client.config.toml import load

    model = _free_port()
    os.environ[_MODEL] = f"http://127.0.0.1:{model}"
    app = load(_DEMO)

    @asynccontextmanager
    async def beside() -> AsyncIterator[None]:
        await _bring_up(app.settings)
        async with _simulated(model):
            yield

    with listen(host, port) as sock:
        run(
            app,
            sock,
            worker=True,
            beside=beside,
            on_ready=lambda dsn: _greet(app, url_of(sock), dsn, why=why, as_json=as_json),
        )


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@asynccontextmanager
async def _simulated(port: int) -> AsyncIterator[None]:
    from penstock.models.simulated.model import Model
    from penstock.models.simulated.options import Options

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
            await migrations.up(conn)
        finally:
            await conn.close()


def _greet(  # noqa: PLR0913  # all named
    app: "Penstock",
    url: str,
    dsn: str,
    *,
    as_json: bool,
    sites: dict[str, str] | None = None,
    why: str | None = None,
) -> None:
    """`sites`: of the five systems, if they run; `why`: if they should, and do not."""
    from penstock.dashboard.session import Doors
    from penstock.security.roots import read_roots

    roots = read_roots(app.settings)
    # Each link signs in once.
    make_link = Doors(roots).make_link
    login = f"{url}/login?code={make_link()}"
    demo = f"{url}/login?code={make_link()}&next=demo" if sites else None
    # A secret that was set is known to whoever set it; one that was made here is not yet.
    secret = "" if app.settings.secrets else roots.first
    kinds = sorted(app.kinds)
    is_own = app.settings.dsn is None and (sites or why)
    home = str(app.settings.home) if is_own else None
    if as_json:
        told: dict[str, Any] = {
            "url": url,
            "login": login,
            "docs": f"{url}/docs",
            "database": place(dsn),
            "kinds": kinds,
        }
        more = {
            "demo": demo,
            "systems": sites,
            "home": home,
            "secret": secret,
            "without_systems": why,
        }
        print_json(told | {name: value for name, value in more.items() if value})
    else:
        key = secret or "$PENSTOCK_SECRET"
        kind, payload = _EXAMPLE if _EXAMPLE[0] in kinds else (kinds[0], "{}")
        body = f'{{"kind": "{kind}", "payload": {payload}}}'
        if demo:
            typer.echo(f"Open the demo (this link signs you in, once): {demo}")
            typer.echo(f"The dashboard is a click away, or by a link of its own: {login}")
        else:
            typer.echo(f"Open the dashboard (this link signs you in, once): {login}")
        typer.echo(f"API and worker at {url}, its documents at {url}/docs.")
        if sites:
            typer.echo(f"The systems: {', '.join(f'{k} {v}' for k, v in sites.items())}.")
        if why:
            typer.echo(f"The five systems of the demo are not here: {why}.")
        typer.echo(f"The database: {place(dsn)}. Kinds of job: {', '.join(kinds)}.")
        if home:
            typer.echo(f"Other commands find it so: PENSTOCK_HOME={shlex.quote(home)} penstock top")
        typer.echo(f"The operator's key: {key}")
        typer.echo("Try:")
        typer.echo(f'  curl -H "Authorization: Bearer {key}" -d {shlex.quote(body)} {url}/v1/jobs')
        typer.echo("Ctrl-C ends everything.")
    sys.stdout.flush()
