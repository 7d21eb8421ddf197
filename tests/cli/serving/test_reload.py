"""`dev --reload`: the app restarts when its code changes; if it cannot start, it waits."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from penstock.cli.serving.processes import app_files, changed
from support.shapes import Penstock

WAIT_SECONDS = 100
APP = """
from penstock import Penstock

app = Penstock()
queue = app.queue("q")


@app.job(queue=queue)
async def {kind}() -> None: ...
"""


class Dev:
    """A `penstock dev --reload` in a folder, and its output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "dev", "shop:app", "--reload", "--port", "0"],
            cwd=folder,
            env={**kept, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def write(self, kind: str, more: str = "") -> None:
        (self.folder / "shop.py").write_text(APP.format(kind=kind) + more)

    def wait_for_line(self, text: str, times: int = 1) -> str:
        """Wait until this many lines have the text; return the last of them."""
        found = wait(lambda: [line for line in self.lines if text in line], times, self.lines)
        return found[-1]


def wait(find: Callable[[], list[str]], times: int, lines: list[str]) -> list[str]:
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found := find()) < times:
        assert time.monotonic() < deadline, "".join(lines)
        time.sleep(0.05)
    return found


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    (tmp_path / "shop.py").write_text(APP.format(kind="one"))
    started = Dev(tmp_path)
    with started.process:
        try:
            yield started
        finally:
            started.process.kill()


@pytest.mark.timeout(400)
def test_a_changed_app_restarts_and_the_database_stays(dev: Dev) -> None:
    greeting = dev.wait_for_line("API and worker at ")
    url = greeting.split()[4].rstrip(",")
    assert "Kinds of job: one." in dev.wait_for_line("Kinds of job")
    server = dev.folder / ".penstock" / "postgres" / "postmaster.pid"
    postmaster = server.read_text().splitlines()[0]

    dev.write("two", "def (\n")
    dev.wait_for_line("shop.py changed: starting again.")
    assert "SyntaxError: invalid syntax (shop.py:10)." in dev.wait_for_line("cannot be loaded")
    dev.wait_for_line("The app has exited; it starts again when a file changes.")
    dev.write("two")
    dev.wait_for_line(f"Running again at {url}.")
    assert httpx.get(f"{url}/healthz").status_code == 200
    assert server.read_text().splitlines()[0] == postmaster

    dev.process.send_signal(signal.SIGTERM)
    assert dev.process.wait(WAIT_SECONDS) == 0
    assert not server.exists(), "the embedded server has stopped with it"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


def test_only_an_apps_own_code_counts(tmp_path: Path) -> None:
    for name in ("shop.py", "penstock.toml", "sub/jobs.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    before = app_files(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in before} == {
        "shop.py",
        "penstock.toml",
        "sub/jobs.py",
    }
    for name in ("notes.txt", ".penstock/x.py", "node_modules/x.py", "env/pyvenv.cfg", "env/x.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert changed(before, app_files(tmp_path)) == []
    (tmp_path / "shop.py").write_text("xy")
    (tmp_path / "sub" / "jobs.py").unlink()
    (tmp_path / "new.py").write_text("x")
    names = [path.name for path in changed(before, app_files(tmp_path))]
    assert names == ["new.py", "shop.py", "jobs.py"]


def test_the_demo_is_not_reloaded(penstock: Penstock) -> None:
    done = penstock("dev", "--reload")
    assert (done.code, done.out) == (2, "")
    assert "needs an APP, or a penstock.toml in this folder" in done.err
