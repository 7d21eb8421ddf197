"""`penstock dev`: API, dashboard and worker in one process, on the embedded database."""

import os
import shlex
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.commands.run.serve import PORT, Host, Port, require_extra, require_kinds
from penstock.cli.output.console import DEMO, Json, answer, print_error, settings
from penstock.db.connections.connect import open_connection
from penstock.db.connections.display_address import display_address
from penstock.db.embedded.database import make_home
from penstock.db.schema import migrations

if TYPE_CHECKING:
    from penstock.base.settings import Settings
    from penstock.client.app import Penstock

_DEMO = Path(__file__).parents[2] / "demo.toml"
# The variable in which the demo's file expects the address of its model.
_MODEL = "PENSTOCK_DEMO_MODEL"
_TOKENS_PER_SECOND = 12.0
# A job of the demo, for the example command that is printed.
_EXAMPLE = ("feedback", '{"answer": "6 times 7 is 42"}')


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
        typer.Option(
            "--reload", help="Restart the app when one of its .py or .toml files changes."
        ),
    ] = False,
    inherit: Annotated[str | None, typer.Option(hidden=True)] = None,
    as_json: Json = False,
) -> None:
    """Run API, dashboard and worker until stopped (Ctrl-C); without an app, the demo."""
    require_extra()
    from penstock.cli.serving.serving import listen

    if inherit is not None:
        # The app's process of `dev --reload`; the parent process holds the socket and the database.
        number, *pipes, greets = (int(number) for number in inherit.split(","))
        with socket.socket(fileno=number) as sock:
            _run_app(app, sock, as_json=as_json, greets=bool(greets), pipes=pipes)
    elif app is not None or Path("penstock.toml").exists():
        with listen(host, port) as sock:
            (_reload if reload else _run_app)(app, sock, as_json=as_json)
    elif reload:
        raise typer.BadParameter(
            "needs an APP, or a penstock.toml in this folder.", param_hint="--reload"
        )
    else:
        _run_demo(host, port, as_json=as_json)


def _run_demo(host: str, port: int, *, as_json: bool) -> None:
    """Run the five systems; if they cannot run, one kind of job with a model in this process."""
    from penstock.cli.serving import demo
    from penstock.cli.serving.serving import listen
    from penstock.client.config.toml import load

    folder = demo.find_folder()
    why_not = demo.why_not(folder, settings())
    _move_home(settings())
    if folder is not None and why_not is None:
        demo.run(
            folder,
            _DEMO,
            host,
            port,
            lambda app, url, dsn, sites: _greet(app, url, dsn, sites=sites, as_json=as_json),
        )
        return
    model = _free_port()
    os.environ[_MODEL] = f"http://127.0.0.1:{model}"
    app = load(_DEMO)
    with listen(host, port) as sock:
        _run(
            app,
            sock,
            lambda url, dsn: _greet(app, url, dsn, why=why_not or "", as_json=as_json),
            model=model,
        )


def _move_home(settings: "Settings") -> None:
    """Use a separate folder for the demo: an app may use the outer one. Git ignores both."""
    home = settings.home / DEMO
    os.environ["PENSTOCK_HOME"] = str(home)
    if settings.dsn is None:
        # If this fails, starting the database fails with a better message.
        with suppress(OSError):
            for folder in (settings.home, home):
                make_home(folder)


def _reload(name: str | None, sock: socket.socket, *, as_json: bool) -> None:
    from penstock.cli.serving.processes import reload

    words = ["dev", *([name] if name else []), *(["--json"] if as_json else [])]
    reload(words, sock, Path.cwd(), settings())


def _run_app(
    name: str | None,
    sock: socket.socket,
    *,
    as_json: bool,
    greets: bool = True,
    pipes: Sequence[int] = (),
) -> None:
    """Run an app. `pipes` lead to the parent: we exit when it does, and report that we serve."""
    from penstock.client.config.find import find_app

    app = find_app(name)
    require_kinds(app)

    def greet(url: str, dsn: str) -> None:
        if greets:
            _greet(app, url, dsn, as_json=as_json)
        else:
            print_error(f"Running again at {url}.")
        for ready in pipes[1:]:
            os.write(ready, b"+")

    _run(app, sock, greet, life=pipes[0] if pipes else None)


def _run(
    app: "Penstock",
    sock: socket.socket,
    greet: Callable[[str, str], None],
    *,
    model: int | None = None,
    life: int | None = None,
) -> None:
    """Serve an app with a worker; call `greet` with its address and the database's."""
    from penstock.cli.serving.serving import run, url_of

    @asynccontextmanager
    async def beside() -> AsyncIterator[None]:
        await _bring_up(app.settings)
        async with nullcontext() if model is None else _simulated(model):
            yield

    url = url_of(sock)
    run(app, sock, worker=True, beside=beside, on_ready=lambda dsn: greet(url, dsn), life=life)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


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
    """Migrate the schema on a server, too, as it is a developer's; the embedded one always is."""
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
    """Print addresses and keys. `sites`: those of the five systems; `why` they do not run."""
    from penstock.dashboard.session import SignInTokens
    from penstock.security.roots import read_roots

    roots = read_roots(app.settings)
    # Each link signs in once.
    make_link = SignInTokens(roots).make_link
    login = f"{url}/login?code={make_link()}"
    demo = f"{url}/login?code={make_link()}&next=demo" if sites else None
    # Print a secret that was generated here; one that was set is known already.
    secret = "" if app.settings.secrets else roots.first
    kinds = sorted(app.kinds)
    is_own = app.settings.dsn is None and (sites or why)
    home = str(app.settings.home) if is_own else None
    always = {
        "url": url,
        "login": login,
        "docs": f"{url}/docs",
        "database": display_address(dsn),
        "kinds": kinds,
    }
    more = {
        "demo": demo,
        "systems": sites,
        "home": home,
        "secret": secret,
        "without_systems": why,
    }
    key = secret or "$PENSTOCK_SECRET"
    kind, payload = _EXAMPLE if _EXAMPLE[0] in kinds else (kinds[0], "{}")
    body = shlex.quote(f'{{"kind": "{kind}", "payload": {payload}}}')
    opening = (
        f"Open the demo (this link signs you in, once): {demo}\n"
        f"The dashboard is one click further, or at its own link: {login}"
        if demo
        else f"Open the dashboard (this link signs you in, once): {login}"
    )
    systems = ", ".join(f"{name} {address}" for name, address in (sites or {}).items())
    find_home = f"Other commands find it with: PENSTOCK_HOME={shlex.quote(home or '')} penstock top"
    lines = [
        opening,
        f"API and worker at {url}, documentation at {url}/docs.",
        *([f"The systems: {systems}."] if sites else []),
        *([f"The five systems of the demo do not run: {why}."] if why else []),
        f"The database: {display_address(dsn)}. Kinds of job: {', '.join(kinds)}.",
        *([find_home] if home else []),
        f"The operator's key: {key}",
        "Try:",
        f'  curl -H "Authorization: Bearer {key}" -d {body} {url}/v1/jobs',
        "Ctrl-C stops everything.",
    ]
    answer(
        always | {name: value for name, value in more.items() if value},
        lambda _: "\n".join(lines),
        as_json=as_json,
    )
