"""`dev` with an app, and without one when the five systems cannot run."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from penstock import Penstock as App
from penstock.base.settings import Settings
from penstock.cli.commands.run import dev
from penstock.cli.serving import demo, serving
from penstock.client.config.toml import load
from support.shapes import Penstock
from support.signing import SECRET

WAIT_SECONDS = 40


@pytest.mark.timeout(120)
def test_without_an_app_a_database_of_yours_is_not_filled_by_the_five_systems(
    penstock: Penstock, blank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs one kind of job with a simulated model. Five systems: journeys/test_demo.py."""
    assert penstock  # it clears the environment
    monkeypatch.setenv("PENSTOCK_DSN", blank)
    monkeypatch.setenv("PENSTOCK_SECRET", SECRET)
    greeted = run(tmp_path)
    with greeted["process"] as process:
        try:
            assert "systems" not in greeted
            assert "PENSTOCK_DSN" in greeted["without_systems"]
            with httpx.Client(
                base_url=greeted["url"], headers={"Authorization": f"Bearer {SECRET}"}
            ) as client:
                job = client.post(
                    "/v1/jobs",
                    json={
                        "kind": "feedback",
                        "payload": {"answer": "6 times 7 is 42"},
                        "account": "u1",
                    },
                ).json()
                deadline = time.monotonic() + WAIT_SECONDS
                while (job := client.get(f"/v1/jobs/{job['id']}").json())["status"] != "succeeded":
                    assert time.monotonic() < deadline, job
                    time.sleep(0.1)
                assert job["result"]["text"]
                assert job["plan"] is None, (
                    "only the owner of the database decides on a default plan"
                )
                assert client.get("/demo", follow_redirects=False).status_code == 404
            process.terminate()
            process.communicate(timeout=WAIT_SECONDS)
            assert process.returncode == 0
        finally:
            process.kill()


def test_the_small_demo_declares_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dev._MODEL, "http://127.0.0.1:1")
    app = load(dev._DEMO)
    assert app.plans == {}
    assert set(app.kinds) == {"feedback"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_startup_stops_it_with_a_message(
    number: signal.Signals, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """For example, a signal while the database is being created."""
    events: list[str] = []

    @asynccontextmanager
    async def beside() -> AsyncIterator[None]:
        events.append("started")
        try:
            signal.raise_signal(number)
            await asyncio.sleep(WAIT_SECONDS)
            yield
        finally:
            events.append("stopped")

    app = App(home=tmp_path)
    with serving.listen("127.0.0.1", 0) as sock, pytest.raises(typer.Exit) as left:
        serving.run(app, sock, worker=False, beside=beside, on_ready=events.append)
    assert left.value.exit_code == 128 + number
    assert events == ["started", "stopped"]
    assert "Stopping." in capfd.readouterr().err


def test_the_app_of_the_folder_comes_before_the_demo(
    penstock: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(dev, "_run_app", lambda name, _sock, **_: asked.append(name))
    Path("penstock.toml").touch()
    assert penstock("dev", "--port", "0").code == 0
    assert asked == [None]


def test_the_reason_why_the_five_systems_cannot_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = demo.find_folder()
    assert folder is not None
    assert (folder / "marking").is_dir()
    assert demo.why_not(folder, Settings()) is None
    assert "examples" in (demo.why_not(None, Settings()) or "")
    assert "PENSTOCK_DSN" in (demo.why_not(folder, Settings(dsn="postgresql://db/app")) or "")
    assert {"fastapi", "httpx"} <= set(demo._NEEDED), "the five systems import them"
    monkeypatch.setattr(demo, "_NEEDED", ("no_such_module",))
    assert "penstock[server]" in (demo.why_not(folder, Settings()) or "")
    # The layout of an installed package.
    package = tmp_path / "penstock"
    (package / "examples" / "demo").mkdir(parents=True)
    (package / "examples" / "demo" / "stage.py").touch()
    monkeypatch.setattr("penstock.__file__", str(package / "__init__.py"))
    assert demo.find_folder() == package / "examples"


def test_an_app_is_served_on_a_server_whose_schema_it_migrates(
    penstock: Penstock, app: str, blank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert penstock
    monkeypatch.setenv("PENSTOCK_DSN", blank)
    monkeypatch.setenv("PENSTOCK_SECRET", SECRET)
    greeted = run(tmp_path, app)
    with greeted["process"] as process:
        try:
            assert "secret" not in greeted, "a secret that was set is not printed"
            assert greeted["kinds"] == ["mark", "refuse", "tell_pid"]
        finally:
            process.kill()


def run(folder: Path, *words: str) -> dict[str, Any]:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "dev", *words, "--port", "0", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    greeting = process.stdout.readline()
    assert greeting, process.stderr and process.stderr.read()
    return {**json.loads(greeting), "process": process}
