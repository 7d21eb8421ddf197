"""The campaign: an installation under load, random faults from a seed, a quiet phase, a referee."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fire import figures
from fire.campaign import Campaign
from fire.referee import judge
from fire.weather.forecast import IMPOSSIBLE, POSSIBLE, SHORT, Forecast
from fire.world import World
from support.cluster import wheel_binaries
from support.servers.postmaster import room
from support.shapes import Scale

SECONDS = 25.0
QUIET_SECONDS = (60.0, 180.0)
EACH_FAULT = 3
SAMPLES = (10, 500)
# The limit for starting, the quiet phase and the referee together: each has its own bound, too.
BESIDE_SECONDS = 600.0
LONGEST_SECONDS = 4 * 3_600


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder with all logs; kept after a failure, with a copy of the database."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-campaign-"))
    failed = request.session.testsfailed
    yield folder
    if request.session.testsfailed == failed and not (folder / "failed").exists():
        shutil.rmtree(folder)


@pytest.fixture
async def world(folder: Path, seed: int, scale: Scale) -> AsyncIterator[World]:
    with room() as folder_of_run:
        world = World(folder, folder_of_run, seed)
        world.brief = scale(True, False)
        try:
            yield world
        finally:
            await world.sweep()


@pytest.mark.timeout(LONGEST_SECONDS)
async def test_nothing_is_lost_doubled_or_stuck_whatever_fails(
    world: World,
    scale: Scale,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """R-F29: with the faults of weather/forecast.py, the rules of referee.py.

    M2, M3, M4, E9, S12, F5, F6, G1, G3, G6
    """
    long = scale(False, True)
    seconds = request.config.getoption("--minutes") * 60 if long else SECONDS
    # In less than the full time not every fault can come three times.
    each = min(EACH_FAULT, max(1, int(seconds // 240)))
    only = (request.config.getoption("--weather") or "").split(",")
    only = [name for name in only if name]
    assert set(only) <= set(POSSIBLE), f"faults that can be had here: {', '.join(POSSIBLE)}"
    must = Counter(dict.fromkeys(only or POSSIBLE, each)) if long else Counter(only or SHORT)
    if long and os.environ.get("CI"):
        assert not IMPOSSIBLE, f"this machine cannot do {IMPOSSIBLE}: .ci/install-fault-tools"
    began = time.monotonic()
    try:
        async with asyncio.timeout(seconds + BESIDE_SECONDS):
            await world.start()
            campaign, forecast = Campaign(world), Forecast(world, must, only)
            started = round(time.monotonic() - began, 1)
            await campaign.run(forecast, seconds, scale(*QUIET_SECONDS))
            await world.close_processes()
            conn = await world.connect()
            verdict = await judge(world.folder, conn, samples=int(min(scale(*SAMPLES), seconds)))
            await conn.close()
    except BaseException:
        _keep(world)
        with capsys.disabled():
            print(f"\nwhat the campaign has left is in {world.folder}")
        raise
    missed = must - forecast.seen
    assert not missed, f"these faults did not come as often as they must: {missed}"
    found = verdict.figures | {
        "seed": world.seed,
        "times": campaign.times | {"start": started},
        "faults": dict(sorted(forecast.seen.items())),
        "left out": IMPOSSIBLE,
    }
    if path := request.config.getoption("--figures"):
        path.write_text(json.dumps(found, indent=2) + "\n")
    if long:
        with capsys.disabled():
            print(f"\nthe campaign, seed {world.seed}: {found['times']}, {found['faults']}")
            print(figures.render(verdict.figures))


def _keep(world: World) -> None:
    """Copy the database beside the logs, to find the reason of a failure."""
    (world.folder / "failed").touch()
    if world.postgres.log.exists():
        shutil.copy(world.postgres.log, world.folder / "postgres.log")
    if world.postgres.runs:
        words = [str(wheel_binaries() / "pg_dump"), "--data-only", "--dbname", world.dsn]
        with (world.folder / "database.sql").open("wb") as file:
            subprocess.run(words, stdout=file, stderr=file, check=False, timeout=60)
