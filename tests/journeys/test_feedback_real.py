"""The feedback example with a model that really computes: `penstock model --real`."""

from pathlib import Path

import asyncpg
import pytest

from journeys.feedback_site import Feedback, pupil
from journeys.site import PATIENCE_SECONDS, Shown
from support.models.tiny_gguf import write_tiny_gguf
from support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
FETCHED = next(iter(sorted((ROOT / ".penstock" / "model").glob("*.gguf"))), None)
ENDED = ("completed", "failed")
# What a model of random weights says has no end of its own. A schema binds it: one of two texts,
# and then nothing is allowed but the end. A token is a byte to it, so the prompt is short.
TINY = {
    "num_ctx": "512",
    "num_predict": "200",
    "schema": '{ type = "object", properties = { text = {'
    ' enum = ["Gut gemacht.", "Lies es noch einmal."] } }, required = ["text"] }',
    "system": '"Kurz."',
    "prompt": '"{task} {answer}"',
}
SOON = "{ attempts = 3, delay = 0.1 }"


async def test_three_texts_through_a_tiny_real_model(
    database: str, tmp_path: Path, conn: asyncpg.Connection
) -> None:
    """F1: half a megabyte of noise, and all three get their (nonsensical) feedback."""
    gguf = write_tiny_gguf(tmp_path / "tiny.gguf")
    site = Feedback(database, tmp_path)
    site.configure("small_model.toml", retry=SOON, **TINY)
    looks = await _three(site, gguf, conn, window="512")
    assert {one["feedback"] for one in looks} <= {"Gut gemacht.", "Lies es noch einmal."}


@pytest.mark.skipif(FETCHED is None, reason="`make model` has not been run")
async def test_three_texts_through_a_small_real_model(
    database: str, tmp_path: Path, conn: asyncpg.Connection
) -> None:
    """F1, F2: as with `--model real`; what is bound to a schema still comes word by word."""
    assert FETCHED is not None
    site = Feedback(database, tmp_path)
    site.configure("small_model.toml", retry=SOON)
    await _three(site, FETCHED, conn, window="4096")


async def _three(
    site: Feedback, gguf: Path, conn: asyncpg.Connection, *, window: str
) -> list[Shown]:
    so_far: list[str] = []
    try:
        options = ("--real", "--gguf", str(gguf), "--name", "llama3.2", "--num-ctx", window)
        for program in (site.start_web(), site.start_model(*options)):
            program.wait_ready()
        site.start_worker()
        async with pupil(site) as ada:
            numbers = [
                (await ada.submit(task=task, answer=f"Das Blatt ist grün. {task}"))["id"]
                for task in ("handys", "blatt", "brief")
            ]

            async def all_ended() -> bool:
                looks = [await ada.look(number) for number in numbers]
                so_far.extend(one["so_far"] for one in looks if one["so_far"])
                return all(one["feedback_status"] in ENDED for one in looks)

            await eventually(all_ended, "all have ended", seconds=5 * PATIENCE_SECONDS)
            looks = [await ada.look(number) for number in numbers]
    finally:
        site.end()
    assert {one["feedback_status"] for one in looks} == {"completed"}, looks
    assert all(one["feedback"] for one in looks)
    assert not any(words.startswith("{") for words in so_far)
    jobs = await conn.fetch("select status::text, failures from penstock.finished")
    # One that found no end in time would have been tried again: that is fine, and rare.
    assert [job["status"] for job in jobs] == ["succeeded"] * 3
    return looks
