"""Checks a finished run: every rule and every breach of it, each with job and evidence."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from fire import figures
from fire.record import Record, read
from fire.rules import books, jobs, liveness, outside, processes

# The breaches of each rule that are listed; the rest is counted.
MOST_LISTED = 20


@dataclass
class Verdict:
    """`breaches`: by the name of the rule."""

    breaches: dict[str, list[str]]
    figures: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = []
        for rule, found in self.breaches.items():
            lines.append(f"{rule}: {len(found)} breaches")
            lines.extend(f"  - {one}" for one in found[:MOST_LISTED])
            if len(found) > MOST_LISTED:
                lines.append(f"  - and {len(found) - MOST_LISTED} more")
        return "\n".join(lines) or "no breach"


async def judge(
    logs: Path, conn: asyncpg.Connection, *, samples: int = 1, known: Sequence[str] = ()
) -> Verdict:
    """`samples`: how many sound snapshots are required. `known`: messages that are allowed."""
    record = await read(logs, conn)
    found = _by_record(record, samples, known)
    found["7 books"] += await books.audit(conn)
    found["10 invariants"] = await books.invariants(conn)
    breaches = {rule: lines for rule, lines in found.items() if lines}
    verdict = Verdict(breaches, figures.measure(record))
    assert not breaches, f"the referee of {logs} says:\n{verdict}"
    return verdict


def _by_record(record: Record, samples: int, known: Sequence[str]) -> dict[str, list[str]]:
    return {
        "1 accepted": [*jobs.accepted(record), *jobs.retried(record)],
        "2 finished": list(jobs.finished(record)),
        "3 once": list(jobs.once(record)),
        "4 blameless": list(jobs.blameless(record)),
        "5 calls": list(outside.calls(record)),
        "6 webhooks": list(outside.webhooks(record)),
        "7 books": [*books.grants(record), *books.charges(record)],
        "8 limits": list(books.samples(record, samples)),
        "9 on_finish": list(outside.on_finish(record)),
        "11 order": list(processes.order(record)),
        "12 watchers": list(outside.watchers(record)),
        "13 processes": list(processes.processes(record, known)),
        "14 moves": list(liveness.moves(record)),
        "15 blocked loops": list(liveness.blocked_loops(record)),
        "16 odd exceptions": list(liveness.odd_exceptions(record)),
    }
