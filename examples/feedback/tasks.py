"""The tasks of the class."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    subject: str
    title: str
    text: str


TASKS = {
    "handys": Task(
        "Deutsch",
        "Handys in der Pause",
        "Sollen Handys in der Pause erlaubt sein? Schreibe eine kurze Erörterung: zwei Gründe "
        "dafür, zwei dagegen und am Ende deine eigene Meinung.",
    ),
    "blatt": Task(
        "Biologie",
        "Warum sind Blätter grün?",
        "Erkläre jemandem aus der fünften Klasse, wie eine Pflanze aus Licht, Wasser und Luft "
        "Zucker macht und warum ihre Blätter dabei grün aussehen.",
    ),
    "brief": Task(
        "Geschichte",
        "Ein Brief aus dem Jahr 1848",
        "Du lebst im März 1848 in Berlin. Schreibe deiner Tante auf dem Land, was du auf der "
        "Straße gesehen hast und was du dir für die Zukunft wünschst.",
    ),
}
