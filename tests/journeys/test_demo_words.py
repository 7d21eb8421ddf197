"""Parts of the demo by themselves: words in two languages, and visitors who know when to rest."""

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


def test_both_languages_say_the_same_things() -> None:
    from demo import about, words

    for table in (words.PAGE, words._STORY, words._COUNTS, words._HOW, about.ABOUT):
        english, german = table["en"], table["de"]
        assert english.keys() == german.keys()
        same = {key for key in english if english[key] == german[key]}
        assert same <= {"docs", "worker", "dashboard"}
    assert set(words.TONES) < set(words._STORY["en"])
    for language in words.LANGUAGES:
        for key in words._STORY[language]:
            said = words.sentence(language, key, VALUES)
            assert "{" not in said, said
    assert words.sentence("en", "worker_healed", VALUES) == (
        "The worker (process 4711) was killed. 6 jobs had no owner. 1.4 s later a new worker had "
        "all of them."
    )
    assert words.sentence("en", "worker_healed_partly", VALUES).endswith(
        "1.4 s later a new worker had 4 of them; 2 ended without another start."
    )
    gave_up = words.sentence("en", "worker_lost", VALUES | {"how": "gave_up"})
    assert gave_up == (
        "The worker (process 4711) gave up; the terminal says why. 6 jobs have no owner."
    )
    assert "1,4 s später" in words.sentence("de", "worker_healed", VALUES)


@pytest.mark.parametrize(
    ("said", "accepted", "language"),
    [
        (None, "", "en"),
        (None, "de-AT,de;q=0.9,en;q=0.8", "de"),
        (None, "fr,de", "en"),
        ("en", "de", "en"),
        ("xx", "de", "de"),
    ],
)
def test_the_language_is_that_of_the_address_or_the_browser(
    said: str | None, accepted: str, language: str
) -> None:
    from demo import words

    assert words.choose(said, accepted) == language


async def test_visitors_rest_where_much_waits_and_while_nobody_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from demo import people

    visits: list[str] = []
    waiting = {"ollama": people.MOST_WAITING, "studio": 0}

    class Visitor(people.Visitor):
        pace = 0.0

        async def seed(self) -> None:
            visits.append(f"seed {self.queue}")
            raise RuntimeError("nobody has foreseen this")

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
        await eventually(lambda: visited("studio"), "somebody comes, whatever befell them once")
        assert {"seed ollama", "seed studio"} < set(visits)
        assert "ollama" not in visits, "twelve wait there already"
        monkeypatch.setattr(people, "ATTENTION_SECONDS", 0.0)

        seen: list[int] = []

        async def still() -> bool:
            # They come without a pause here: between two looks there would be many.
            seen.append(len(visits))
            return seen[-2:] == [len(visits)] * 2

        await eventually(still, "nobody comes any more")
        assert crowd.is_resting
        monkeypatch.setattr(people, "ATTENTION_SECONDS", 900.0)
        visits.clear()
        crowd.notice()
        await eventually(lambda: visited("studio"), "they are back when somebody looks")
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
