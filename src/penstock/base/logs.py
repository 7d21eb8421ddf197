"""Logs: one line each, as text or JSON. They have ids, kinds and counts; never a job's data."""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the HTTP request in progress: each log line of the request has it."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Lines(logging.Formatter):
    """`2026-11-15T10:00:00Z INFO penstock.worker: message key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        more = "".join(f" {key}={value}" for key, value in _extras(record).items())
        return (
            f"{_moment(record)} {record.levelname} {record.name}: {record.getMessage()}{more}"
            + _trace(record)
        )


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "at": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage() + _trace(record),
            **_extras(record),
        }
        return json.dumps(fields, default=str, ensure_ascii=False)


def configure(level: str, form: str = "text") -> None:
    """Send the logs of this process to standard error, our own from `level` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Lines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    # Otherwise, if a line cannot be written, logging prints the exception that is being handled.
    logging.raiseExceptions = False
    logging.getLogger("penstock").setLevel(level.upper())


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _extras(record: logging.LogRecord) -> dict[str, object]:
    extras = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    request = request_id.get()
    return extras if request is None else {"request": request, **extras}


def _trace(record: logging.LogRecord) -> str:
    """The location of an exception without its message, which may quote a payload."""
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    kind, _, trace = record.exc_info
    locations = []
    while trace is not None:
        locations.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f" [{kind.__name__} at {' < '.join(reversed(locations))}]"
