"""The feedback example with a model that really computes: `penstock model --real`."""

from pathlib import Path

import asyncpg
import pytest

from journeys.feedback_site import PATIENCE_SECONDS, Feedback, pupil
from providers.tiny_gguf import write_tiny_gguf
from waiting import eventually

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
FETCHED = next(iter(sorted((ROOT / ".penstock" / "model").glob("*.gguf"))), None)
ENDED = ("completed", "failed")
# What a model of random weights says has no end of its own. A schema binds it: some letters, and
# then nothing else is allowed but the end. A token is a byte to it, so the prompt is short.
TINY = {
    "num_ctx": '512\nschema = { type = "object", properties = { text = { type = "string",'
    ' minLength = 5, maxLength = 20 } }, required = ["text"], additionalProperties = false }',
    "num_predict": "200",
    "system": '"Kurz."',
    "prompt": '"{task} {answer}"',
    "retry": "{ attempts = 3, delay = 0.1 }",
}


async def test_three_texts_through_a_tiny_real_model(
    database: str, tmp_path: Path, conn: asyncpg.Connection
) -> None:
    """F1: half a megabyte of noise, and all three get their (nonsensical) feedback."""
    gguf = write_tiny_gguf(tmp_path / "tiny.gguf")
    site = Feedback(database, tmp_path)
    site.configure(**TINY)
    await _three(site, gguf, conn, window="512", must_succeed=True)


@pytest.mark.skipif(FETCHED is None, reason="`make model` has not been run")
async def test_three_texts_through_a_small_real_model(
    database: str, tmp_path: Path, conn: asyncpg.Connection
) -> None:
    """F1, F4: the example as it is; an answer that never ends is told as such."""
    assert FETCHED is not None
    site = Feedback(database, tmp_path)
    site.configure(retry="{ attempts = 2, delay = 0.1 }", num_predict="300")
    await _three(site, FETCHED, conn, window="4096", must_succeed=False)


async def _three(
    site: Feedback, gguf: Path, conn: asyncpg.Connection, *, window: str, must_succeed: bool
) -> None:
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
                return all(one["feedback_status"] in ENDED for one in looks)

            await eventually(all_ended, "all have ended", seconds=5 * PATIENCE_SECONDS)
            looks = [await ada.look(number) for number in numbers]
    finally:
        site.end()
    jobs = await conn.fetch("select status::text, error ->> 'class' as cls from penstock.finished")
    assert len(jobs) == 3
    for job in jobs:
        # A model this small may not find an end; then that is what is said, and nothing is made up.
        wanted = ("succeeded", None) if job["status"] == "succeeded" else ("failed", "bad_output")
        assert (job["status"], job["cls"]) == wanted
    for one in looks:
        assert bool(one["feedback"]) == (one["feedback_status"] == "completed")
    if must_succeed:
        assert {one["feedback_status"] for one in looks} == {"completed"}
