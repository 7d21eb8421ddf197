"""Credits in a storm: 32 connections spend one account while workers and the server are killed.

In every snapshot balances are not negative and the sums agree; every answer matches the database;
in the end each job is settled once, and every bought credit is spent or left.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers.killable import Killable
from support.shapes import Scale
from support.storms.credit_storm import CALM_SECONDS, CreditStorm

SECONDS = (20, 600)
KILLS = (3, 40)
# Events that every storm must have; a short one on a slow machine may miss the others.
WEATHER = ["submits", "starts", "cancels", "finished, succeeded", "finished, failed"]
LONG_WEATHER = [
    "refused, insufficient_credits",
    "replayed after a cut",
    "batch in_doubt",
    "deduct",
    "deduct, replayed",
    "refund",
    "grant, replayed",
    "late, stale",
    "callback, accepted",
    "recovered, lost",
    "recovered, stuck",
    "recovered, timed_out",
    "workers died",
    "finished, cancelled",
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Killable]:
    server = Killable(tmp_path / "home")
    yield server
    server.close()


@pytest.mark.timeout(SECONDS[1] + CALM_SECONDS + 120)
async def test_credits_add_up_in_a_storm(
    server: Killable, scale: Scale, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """G1, G2, G3, G4, G13, G17, G19"""
    storm = CreditStorm(server, seed)
    await storm.prepare()
    try:
        await storm.rage(scale(*SECONDS), scale(*KILLS))
        await storm.close()
    finally:
        print(storm.figures())
    seen = storm.receipts.seen
    assert [what for what in scale(WEATHER, WEATHER + LONG_WEATHER) if not seen[what]] == []
    assert seen["servers killed"] == scale(*KILLS)
    assert storm.auditor.snapshots >= scale(10, 500)
    if scale(False, True):
        with capsys.disabled():
            print(f"\ncredits in a storm, seed {seed}: {storm.figures()}")
