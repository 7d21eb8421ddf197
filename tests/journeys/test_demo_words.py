"""Parts of the demo: texts in two languages, and visitors who pause."""

import asyncio
from typing import Any

import pytest

from support.waiting import eventually

VALUES: dict[str, Any] = {
    "pid": 4711,
    "owners": 6,
    "owned": 6,
    "all_of_them": 6,
    "how": "killed",
    "had": 4,
    "ended": 2,
    "left": 2,
    "waits": 1,
    "waited": 0,
    "failures": 0,
    "seconds": 1.44,
    "first": 0.5,
}


pytestmark = pytest.mark.usefixtures("examples")


def test_both_languages_have_the_same_texts() -> None:
    from demo import about, words

    for table in (words.PAGE, words._STORY, words._COUNTS, words._HOW, about.ABOUT):
        english, german = table["en"], table["de"]
        assert english.keys() == german.keys()
        same = {key for key in english if english[key] == german[key]}
        assert same <= {"docs", "worker", "dashboard"}
    assert set(words.TONES) < set(words._STORY["en"])
    for language in words.LANGUAGES:
        for key in words._STORY[language]:
            text = words.sentence(language, key, VALUES)
            assert "{" not in text, text
    assert words.sentence("en", "worker_healed", VALUES) == (
        "The worker (process 4711) was killed. 6 jobs had no owner. 1.4 s later a new worker had "
        "all of them."
    )
    assert words.sentence("en", "worker_healed_partly", VALUES).endswith(
        "1.4 s later a new worker had 4 of them; 2 finished without another attempt."
    )
    gave_up = words.sentence("en", "worker_lost", VALUES | {"how": "gave_up"})
    assert gave_up == (
        "The worker (process 4711) exited with an error; the terminal shows why. "
        "6 jobs have no owner."
    )
    assert "1,4 s später" in words.sentence("de", "worker_healed", VALUES)


@pytest.mark.parametrize(
    ("wanted", "accepted", "language"),
    [
        (None, "", "en"),
        (None, "de-AT,de;q=0.9,en;q=0.8", "de"),
        (None, "fr,de", "en"),
        ("en", "de", "en"),
        ("xx", "de", "de"),
    ],
)
def test_the_language_is_that_of_the_address_or_the_browser(
    wanted: str | None, accepted: str, language: str
) -> None:
    from demo import words

    assert words.choose(wanted, accepted) == language


async def test_visitors_pause_while_many_jobs_wait_and_while_nobody_uses_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from demo import people

    visits: list[str] = []
    waiting = {"ollama": people.MOST_WAITING, "studio": 0}

    class Visitor(people.Visitor):
        pace = 0.0

        async def seed(self) -> None:
            visits.append(f"seed {self.queue}")
            raise RuntimeError("an unexpected error")

        async def visit(self) -> None:
            visits.append(self.queue)

    def at(queue: str) -> type[people.Visitor]:
        return type("Visitor", (Visitor,), {"queue": queue})

    async def count(queue: str) -> int:
        return waiting[queue]

    async def visited(queue: str) -> bool:
        return visits.count(queue) > 3

    monkeypatch.setattr(people, "KINDS", {"feedback": at("ollama"), "studio": at("studio")})
    crowd = people.People({"feedback": "http://127.0.0.1", "studio": "http://127.0.0.1"}, {}, count)
    living = asyncio.create_task(crowd.live())
    try:
        await eventually(lambda: visited("studio"), "visitors come again after an error")
        assert {"seed ollama", "seed studio"} < set(visits)
        assert "ollama" not in visits, "twelve jobs wait there"
        monkeypatch.setattr(people, "ATTENTION_SECONDS", 0.0)

        seen: list[int] = []

        async def still() -> bool:
            # Without pauses here, there would be many visits between two polls.
            seen.append(len(visits))
            return seen[-2:] == [len(visits)] * 2

        await eventually(still, "no visitor comes")
        assert crowd.is_idle
        monkeypatch.setattr(people, "ATTENTION_SECONDS", 900.0)
        visits.clear()
        crowd.notice()
        await eventually(lambda: visited("studio"), "visitors come again when the page is used")
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
