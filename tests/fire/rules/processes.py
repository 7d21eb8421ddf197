"""Rules 11 and 13: one at a time in the narrow queue; no process ended or failed unexpectedly."""

import re
from collections.abc import Iterator, Sequence

from fire.logs import OUTPUTS, Exit
from fire.record import Record
from fire.rules.outside import SKEWED

NARROW = "narrow"

# Messages of unexpected errors. Penstock's programs name the exception in brackets.
_CRIES = re.compile(
    r"Traceback \(most recent call last\)|exception was never retrieved|was never awaited"
    r"|Fatal Python error|Segmentation fault|\[\w+ at /|Exception ignored in"
)
# A traceback ends with the first line that is not indented, which names the exception.
_NAMED = re.compile(r"^[A-Za-z_][\w.]*(?::|$)")
_LINES_OF_A_CRY = 200
# Starting takes a few seconds on two busy cores, and ten with an address that does not answer.
YOUNG_SECONDS = 30.0
_UNREACHABLE = "cannot be reached"


def order(record: Record) -> Iterator[str]:
    """11: no two handlers of the narrow queue ran at the same time.

    An attempt whose worker lost it may run on beside the next one: it counts until then. One
    without an end is left out: the time when its worker died is not known.
    """
    runs = []
    for start, begun in record.starts.items():
        job, end, row = record.jobs.get(start[0]), record.ends.get(start), record.settled.get(start)
        if job is None or job.queue != NARROW or SKEWED in begun.worker or not (end and row):
            continue
        until = min(end.at, row.ended_at)
        if begun.at < until:
            runs.append((begun.at, until, start))
    longest = None
    for run in sorted(runs):
        if longest is not None and run[0] < longest[1]:
            by = longest[1] - run[0]
            yield f"attempts {longest[2]} and {run[2]} ran at the same time, for {by:.3f} s"
        if longest is None or run[1] > longest[1]:
            longest = run


def processes(record: Record, known: Sequence[str] = ()) -> Iterator[str]:
    """13: only killed or stopped processes have ended, and none has logged an unexpected error.

    `known`: patterns of allowed messages.
    """
    for exit_ in record.exits:
        if not exit_.meant and not _found_no_server(exit_, record):
            yield f"{exit_.name} ended by itself with {exit_.code}: {exit_}"
    for path in record.outputs:
        lines = path.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if not _CRIES.search(line):
                continue
            message = _whole(lines[number : number + _LINES_OF_A_CRY])
            if not any(re.search(pattern, message) for pattern in known):
                yield f"{path.name}:{number + 1}: {message}"


def _found_no_server(exit_: Exit, record: Record) -> bool:
    """A program that starts while the database is unavailable reports that and ends.

    One that has begun its work waits. So it must be young, have reported it, and during a fault.
    """
    path = record.folder / OUTPUTS / f"{exit_.name}.log"
    return (
        exit_.code == 1
        and exit_.at - exit_.began <= YOUNG_SECONDS
        and any(
            storm.begin <= exit_.at and exit_.began <= storm.end + YOUNG_SECONDS
            for storm in record.storms
        )
        and path.exists()
        and _UNREACHABLE in path.read_text(errors="replace")
    )


def _whole(lines: Sequence[str]) -> str:
    """Return the message and, for a traceback, the exception at its end."""
    first = lines[0]
    if "Traceback (most" not in first:
        return first
    for line in lines[1:]:
        if _NAMED.match(line):
            return f"{first} … {line}"
    return first
