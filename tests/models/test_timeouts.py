"""The timeouts of handlers in `penstock.toml`: shorter than the job's timeout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.client.config.toml import load
from penstock.errors import WrongApp

COMMON = 'url = "http://127.0.0.1:1"\nfields = { answer = "str" }\n'
MODEL = COMMON + 'model = "m"\nprompt = "p"\n'

Waits = Callable[..., Any]


@pytest.fixture
def config_of(tmp_path: Path) -> Waits:
    """Return the configuration with which a job's handler was built."""

    def found(handler: str, options: str = "", queue: str = "") -> Any:
        text = f'[queues.q]\n{queue}\n[jobs.f]\nqueue = "q"\nhandler = "{handler}"\n{options}\n'
        (tmp_path / "penstock.toml").write_text(text + (COMMON if handler == "http" else MODEL))
        return _config(load(tmp_path / "penstock.toml"))

    return found


def _config(app: Penstock) -> Any:
    """The configuration in the closure of the handler that `build` made."""
    function: Any = app.kinds["f"].function
    handler = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))["handler"]
    inner = handler.cell_contents
    cells = dict(zip(inner.__code__.co_freevars, inner.__closure__, strict=True))
    return cells["config"].cell_contents


@pytest.mark.parametrize("handler", ["ollama", "openai"])
def test_the_first_token_may_take_as_long_as_the_job(config_of: Waits, handler: str) -> None:
    """None: the timeout of the job ends the wait, also where an operator has changed it."""
    assert config_of(handler).first_token_seconds is None
    assert config_of(handler, queue="timeout = '1h'").first_token_seconds is None
    short = config_of(handler, "timeout = '20s'", "timeout = '1h'")
    assert (short.first_token_seconds, short.stall_seconds) == (None, 15)
    config = config_of(handler, "timeout = '20s'\nfirst_token_timeout = '19s'\nstall_timeout = 18")
    assert (config.first_token_seconds, config.stall_seconds) == (19, 18)


def test_an_answer_may_take_a_little_less_than_the_job(config_of: Waits) -> None:
    assert config_of("http").answer_seconds == 108
    assert config_of("http", "timeout = '10m'").answer_seconds == 540
    assert config_of("http", queue="timeout = '10s'").answer_seconds == 9
    assert config_of("http", "answer_timeout = '30s'").answer_seconds == 30


@pytest.mark.parametrize(
    ("handler", "options", "message"),
    [
        ("ollama", "first_token_timeout = '2m'", "first_token_timeout: is '2m', but the job is"),
        ("openai", "first_token_timeout = 200", "stopped after its timeout of 120 s: make first_"),
        ("openai", "timeout = '30s'\nstall_timeout = '31s'", "stall_timeout: is '31s', but"),
        ("http", "answer_timeout = '3m'", "answer_timeout: is '3m', but the job is stopped"),
        ("http", "answer_timeout = 0", "answer_timeout: answer_timeout is 0; it may be"),
    ],
)
def test_a_timeout_longer_than_the_jobs_is_refused(
    config_of: Waits, handler: str, options: str, message: str
) -> None:
    with pytest.raises(WrongApp) as caught:
        config_of(handler, options)
    assert message in str(caught.value)
