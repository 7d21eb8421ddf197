"""The questions, the points of good answers, and the thirty answers of the class."""

from dataclasses import dataclass
from random import Random
from uuid import NAMESPACE_URL, UUID, uuid5

NAMES = """
Ada Amir Bea Bruno Cem Chloe Dara Elio Esra Finn Gwen Hana Ilya Ines Jory Kaya Leif Lotte Milo Nadia
Omar Pia Quinn Rosa Sami Tess Uri Vera Wanda Zeno
"""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One point of a mark; an answer that contains one of the words gets it."""

    name: str
    words: tuple[str, ...]
    sentences: tuple[str, ...]  # how pupils said it


@dataclass(frozen=True, slots=True)
class Assignment:
    title: str
    subject: str
    question: str
    criteria: tuple[Criterion, ...]
    besides: tuple[str, ...]  # what they said that is worth no point

    @property
    def told(self) -> list[dict[str, object]]:
        """Return the point as the function gets it."""
        return [{"name": one.name, "words": list(one.words)} for one in self.criteria]


@dataclass(frozen=True, slots=True)
class Answer:
    id: UUID
    pupil: str
    text: str


ASSIGNMENTS = {
    "a1": Assignment(
        "Why are leaves green?",
        "Biology",
        "Explain to somebody younger how a plant makes its food, and why its leaves look green.",
        (
            Criterion(
                "what goes in",
                ("water", "carbon dioxide"),
                (
                    "The plant drinks water with its roots.",
                    "It takes carbon dioxide out of the air through tiny holes.",
                ),
            ),
            Criterion(
                "the light",
                ("sunlight", "energy"),
                (
                    "Sunlight gives it the power to do that.",
                    "It needs energy, and that comes from above.",
                ),
            ),
            Criterion(
                "what comes out",
                ("sugar", "oxygen"),
                ("Out of that it cooks sugar.", "What is left over is oxygen, which we breathe."),
            ),
            Criterion(
                "why green",
                ("chlorophyll", "reflect"),
                (
                    "The green stuff is chlorophyll, and it keeps the other colours for itself.",
                    "Leaves reflect the green part of the light, so that is what we see.",
                ),
            ),
        ),
        (
            "In autumn they turn brown.",
            "My grandmother has very many plants.",
            "I think it is a bit like a kitchen.",
        ),
    ),
    "a2": Assignment(
        "Where does rain come from?",
        "Geography",
        "Follow a drop from the sea to a mountain and back. Say what moves it each time.",
        (
            Criterion(
                "up",
                ("evaporat", "vapour"),
                ("The sun warms the sea, and some of it evaporates.", "It goes up as vapour."),
            ),
            Criterion(
                "clouds",
                ("condens", "cloud"),
                ("High up it is cold, and the drops condense.", "Many small drops are a cloud."),
            ),
            Criterion(
                "down",
                ("rain", "snow"),
                ("When they are too heavy they fall as rain.", "On the mountain it is snow."),
            ),
            Criterion(
                "back",
                ("river", "groundwater"),
                ("A river brings it back.", "Some of it sinks in and becomes groundwater."),
            ),
        ),
        (
            "I would like to be such a drop.",
            "The weather was bad when I wrote this.",
            "We have seen that on a class trip.",
        ),
    ),
}


def answers(key: str) -> list[Answer]:
    """Return the answers of the whole class, the same at every start."""
    asked = ASSIGNMENTS[key]
    random = Random(key)
    found = []
    for pupil in NAMES.split():
        known = random.choices(range(len(asked.criteria) + 1), weights=(1, 3, 6, 8, 7))[0]
        said = [random.choice(one.sentences) for one in random.sample(asked.criteria, known)]
        said += random.sample(asked.besides, random.randint(0 if said else 1, 2))
        random.shuffle(said)
        found.append(Answer(uuid5(NAMESPACE_URL, f"marking:{key}:{pupil}"), pupil, " ".join(said)))
    return found
