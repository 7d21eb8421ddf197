"""`model`: a model for development, controlled over HTTP and by signals."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.models.raw import OLLAMA, OPENAI, ask, chat
from support.models.tiny_gguf import write_tiny_gguf
from support.shapes import Penstock

Process = tuple["subprocess.Popen[str]", dict[str, Any]]


@contextmanager
def started(folder: Path, *words: str) -> Iterator[Process]:
    """A process that has printed its addresses; it is killed at the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "model", "--port", "0", "--json", *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if "PENSTOCK" not in name},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            assert process.stderr
            greeting = process.stdout.readline()
            assert greeting.startswith("{"), process.stderr.read()
            yield process, json.loads(greeting)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_answers_until_a_signal_stops_it(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "calls.jsonl"
    with started(tmp_path, "--log", str(log), "--tokens", "7", "--name", "m") as (
        process,
        greeting,
    ):
        assert greeting["models"] == ["m"]
        assert (await ask(greeting["url"], OLLAMA, chat())).lines()[-1]["eval_count"] == 7
        assert (await ask(greeting["url"], OPENAI, chat(OPENAI, stream=False))).status == 200
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out) == {"calls": 2, "most_at_once": 1}
    paths = [json.loads(line)["path"] for line in log.read_text().splitlines()]
    assert paths == [OLLAMA, OPENAI]


async def test_it_stops_while_calls_are_open(tmp_path: Path) -> None:
    with started(tmp_path, "--fault", "hang") as (process, greeting):
        hung = await ask(greeting["url"], OLLAMA, chat(), patience=0.1)
        assert hung.end == "silence"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 0


async def test_faults_are_ordered_at_the_start_and_from_outside(tmp_path: Path) -> None:
    """Bytes and resets are the same on the loop that the command line uses."""
    words = ("--fault", "status:code=503,times=1", "--fault", "reset:times=1")
    more = ("--fault", "reset:after=2,times=1", "--fault", "half_body:times=1")
    with started(tmp_path, *words, *more) as (_, greeting):
        url, control = greeting["url"], greeting["control"]
        assert (await ask(url, OLLAMA, chat())).status == 503
        assert (await ask(url, OLLAMA, chat())).end == "reset"
        late = await ask(url, OLLAMA, chat())
        assert (late.status, late.end, bool(late.data)) == (200, "reset", True)
        half = await ask(url, OLLAMA, chat())
        assert (half.status, half.end) == (200, "closed")
        for _ in range(2):
            assert (await ask(control, "/_stop")).status == 200
            with pytest.raises(ConnectionRefusedError):
                await ask(url, OLLAMA, chat())
            assert (await ask(control, "/_start")).status == 200
            assert (await ask(url, OLLAMA, chat())).status == 200
        report = (await ask(control, "/_calls", method="GET")).json()
        faults = [call["fault"] for call in report["calls"]]
        assert faults == ["status", "reset", "reset", "half_body", None, None]


async def test_a_real_model_answers(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    with started(tmp_path, "--real", "--gguf", str(file), "--num-ctx", "256") as (
        process,
        greeting,
    ):
        assert greeting["models"] == ["tiny"]
        fields = {**chat(options={"num_predict": 4}), "model": "tiny"}
        assert (await ask(greeting["url"], OLLAMA, fields)).lines()[-1]["eval_count"] == 4
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--fault", "nope"], "fault is 'nope'; it may be refuse"),
        (["--fault", "status:code=x"], "status.code is wrong"),
        (["--latency", "soon"], "--latency is 'soon'"),
        (["--slots", "0"], "--slots"),
        (["--tokens-per-second", "0"], "--tokens-per-second"),
        (["--port", "70000"], "--port"),
        (["--gguf", "m.gguf"], "needs --real"),
        (["--real", "--fault", "hang"], "--real and --fault exclude one another"),
        (["--real", "--latency", "1s"], "--real and --latency exclude one another"),
    ],
)
def test_wrong_use_is_exit_code_2(penstock: Penstock, words: list[str], says: str) -> None:
    done = penstock("model", *words)
    assert (done.code, done.out) == (2, "")
    assert says in " ".join(done.err.replace("│", " ").split())


def test_a_missing_file_or_a_taken_port_is_named(penstock: Penstock, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = penstock("model", "--port", port)
    assert (done.code, done.out) == (1, "")
    assert f"Port {port} of 127.0.0.1 is taken" in done.err
    done = penstock("model", "--real")
    assert (done.code, done.out) == (1, "")
    assert (
        "model. Name one with --gguf, or, in a checkout of Penstock, fetch a small one with "
        "`make model`."
    ) in " ".join(done.err.split())
    done = penstock("model", "--port", "0", "--log", str(tmp_path / "no" / "where"))
    assert (done.code, "Cannot write to" in done.err) == (1, True)
