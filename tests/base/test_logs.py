"""Log lines, as text and as JSON: they have the useful facts and never an exception's message."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from penstock.base import logs


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    kept = root.handlers[:], root.level, ours.level, logging.raiseExceptions
    yield
    root.handlers[:] = kept[0]
    root.setLevel(kept[1])
    ours.setLevel(kept[2])
    logging.raiseExceptions = kept[3]


def fail() -> None:
    try:
        raise ValueError("the secret essay")  # noqa: TRY301
    except ValueError:
        logging.getLogger("penstock.worker").exception("it broke", extra={"job": 7, "kind": "mark"})


def test_a_log_line_has_time_message_and_job(capsys: pytest.CaptureFixture[str]) -> None:
    """F8"""
    logs.configure("info")
    fail()
    logging.getLogger("penstock.worker").debug("not asked for")
    [line] = capsys.readouterr().err.splitlines()
    assert line.split(" ", 1)[0].endswith("Z")
    assert "ERROR penstock.worker: it broke job=7 kind=mark [ValueError at " in line
    assert "secret" not in line


def test_log_lines_may_be_json(capsys: pytest.CaptureFixture[str]) -> None:
    """F8"""
    logs.configure("info", "json")
    fail()
    written = capsys.readouterr().err
    fields = json.loads(written)
    assert (fields["level"], fields["logger"], fields["job"]) == ("error", "penstock.worker", 7)
    assert fields["message"].startswith("it broke [ValueError at ")
    assert "secret" not in written


def test_a_line_that_cannot_be_written_prints_no_exception(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("info")
    [handler] = logging.getLogger().handlers
    assert isinstance(handler, logging.StreamHandler)
    closed = io.StringIO()
    closed.close()
    handler.stream = closed
    fail()
    assert capsys.readouterr().err == ""
