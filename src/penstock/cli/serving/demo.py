"""The demo of `penstock dev`: API, dashboard and the page /demo in this process, and five systems.

The systems are the example apps. `demo.stage`, in the folder of the examples, runs them. This
module finds that folder and chooses the addresses.
"""

import importlib
import importlib.util
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from penstock.cli.serving import serving
from penstock.errors import Misconfigured

if TYPE_CHECKING:
    from penstock.base.settings import Settings
    from penstock.client.app import Penstock

# Packages that the systems need, besides those of the server.
_NEEDED = ("fastapi", "httpx")
_LARGEST_PORT = 65_535

Greet = Callable[["Penstock", str, str, dict[str, str]], None]
"""Called with the app, its address, the database's, and those of the systems."""


def find_folder() -> Path | None:
    """Return the folder of the examples: in an installed package, or beside `src` in a checkout."""
    package = Path(penstock.__file__).resolve().parent
    for folder in (package / "examples", package.parent.parent / "examples"):
        if (folder / "demo" / "stage.py").exists():
            return folder
    return None


def why_not(folder: Path | None, settings: "Settings") -> str | None:
    """Say why the five systems cannot run; None if they can."""
    if settings.dsn is not None:
        return "PENSTOCK_DSN names a database of yours, which they would fill"
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing or folder is None:
        what = ", ".join(missing) or "the examples"
        return f"{what}: not installed here; install with pip install 'penstock[server]'"
    return None


def run(folder: Path, own: Path, host: str, port: int, greet: Greet) -> None:
    """Run the demo until stopped. `own`: the file that declares the demo's own kind."""
    # At the front: modules of the working folder may have the same names.
    sys.path.insert(0, str(folder))
    stages = importlib.import_module("demo.stage")
    setting = importlib.import_module("demo.setting")
    with ExitStack() as opened:
        sock = opened.enter_context(serving.listen(host, port))
        first = sock.getsockname()[1]
        sites = {
            key: opened.enter_context(_listen_near(host, wanted))
            for key, wanted in setting.wanted_ports(first).items()
        }
        stage = stages.Stage(own, serving.url_of(sock), sites)
        serving.run(
            stage.app,
            sock,
            worker=False,
            beside=stage.running,
            install=stage.install,
            on_stop=stage.stop,
            on_ready=lambda dsn: greet(stage.app, serving.url_of(sock), dsn, stage.urls),
        )


def _listen_near(host: str, port: int) -> socket.socket:
    """Listen at that port, or at any other if it is taken."""
    try:
        return serving.listen(host, port if port <= _LARGEST_PORT else 0)
    except Misconfigured:
        return serving.listen(host, 0)
