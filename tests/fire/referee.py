"""Judges a run when it is over: every rule, every breach of it, each with job and evidence."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from fire import figures
from fire.record import Record, read
from fire.rules import books, jobs, liveness, outside, processes

# Of each rule, so many breaches are told; the rest is counted.
MOST_TOLD = 20


@dataclass
class Verdict:
    """`breaches`: by the name of the rule."""

    breaches: dict[str, list[str]]
    figures: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        said = []
        for rule, found in self.breaches.items():
            said.append(f"{rule}: {len(found)} breaches")
            said.extend(f"  - {one}" for one in found[:MOST_TOLD])
            if len(found) > MOST_TOLD:
                said.append(f"  - and {len(found) - MOST_TOLD} more")
        return "\n".join(said) or "no breach"


async def judge(
    logs: Path, conn: asyncpg.Connection, *, samples: int = 1, known: Sequence[str] = ()
) -> Verdict:
    """`samples`: how many sound snapshots are asked for. `known`: what processes may print."""
    record = await read(logs, conn)
    found = _by_record(record, samples, known)
    found["7 books"] += await books.audit(conn)
    found["10 invariants"] = await books.invariants(conn)
    breaches = {rule: said for rule, said in found.items() if said}
    verdict = Verdict(breaches, figures.measure(record))
    assert not breaches, f"the referee of {logs} says:\n{verdict}"
    return verdict


def _by_record(record: Record, samples: int, known: Sequence[str]) -> dict[str, list[str]]:
    return {
        "1 accepted": [*jobs.accepted(record), *jobs.retried(record)],
        "2 ended": list(jobs.ended(record)),
        "3 once": list(jobs.once(record)),
        "4 blameless": list(jobs.blameless(record)),
        "5 calls": list(outside.calls(record)),
        "6 webhooks": list(outside.webhooks(record)),
        "7 books": [*books.grants(record), *books.charges(record)],
        "8 limits": list(books.samples(record, samples)),
        "9 on_finish": list(outside.told(record)),
        "11 order": list(processes.order(record)),
        "12 watchers": list(outside.watchers(record)),
        "13 processes": list(processes.processes(record, known)),
        "14 moves": list(liveness.moves(record)),
        "15 blocked loops": list(liveness.blocked_loops(record)),
        "16 odd exceptions": list(liveness.odd_exceptions(record)),
    }
