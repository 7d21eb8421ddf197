"""A simulated class of fifty: invented names, and texts of different lengths."""

from random import Random

from feedback.forms import Draft
from feedback.tasks import TASKS

NAMES = """
Aaliyah Adam Amelie Anton Aylin Ben Carla Charlotte Clara David Deniz Elif Elias Ella Emil Emma
Fatih Felix Finn Frieda Greta Hannah Hugo Ida Jakob Jana Jonas Julia Karl Lara Lea Leon Levin Lina
Linus Luca Luise Malik Marie Mats Mia Mila Nora Oskar Paul Rosa Samira Theo Tom Yusuf
"""

SENTENCES = {
    "handys": (
        "Viele wollen in der Pause kurz nach Hause schreiben, weil sich etwas geändert hat.",
        "Wer ständig auf den Bildschirm schaut, redet kaum noch mit den anderen.",
        "Außerdem kann man mit dem Handy etwas nachschlagen, was im Unterricht unklar war.",
        "Manche filmen andere, ohne zu fragen, und das ist nicht in Ordnung.",
        "Ich finde eine Handy-Ecke am besten, dann bleibt der Schulhof frei.",
        "Früher ging es auch ohne, sagt meine Oma, aber damals hatte niemand eins.",
    ),
    "blatt": (
        "Die Pflanze holt sich Wasser mit den Wurzeln aus der Erde.",
        "Durch kleine Öffnungen im Blatt kommt Luft hinein.",
        "Im Blatt gibt es winzige grüne Körner, die das Licht einfangen.",
        "Sie schlucken rotes und blaues Licht und werfen das grüne zurück.",
        "Aus Wasser und Luft wird Zucker, und übrig bleibt Sauerstoff, den wir atmen.",
        "Ohne Licht geht das nicht, deshalb werden Pflanzen im Keller blass.",
    ),
    "brief": (
        "Liebe Tante, hier in Berlin ist seit Tagen niemand mehr ruhig.",
        "Gestern haben sie in unserer Straße Karren und Bretter zu einer Mauer getürmt.",
        "Vater sagt, ich soll drinnen bleiben, aber ich habe alles vom Fenster aus gesehen.",
        "Die Leute rufen, dass sie endlich frei schreiben und wählen wollen.",
        "Ich wünsche mir, dass später niemand mehr Angst haben muss, wenn er seine Meinung sagt.",
        "Schreib mir bald, ob bei euch auch schon Zeitungen angekommen sind.",
    ),
}


def class_of_fifty() -> list[tuple[str, Draft]]:
    """Return a text for each pupil, different at each call."""
    random = Random()
    drafts = []
    for pupil in NAMES.split():
        task = random.choice(list(TASKS))
        sentences = random.sample(SENTENCES[task], random.randint(2, 6))
        drafts.append((pupil, Draft(task, " ".join(sentences), random.randbytes(12).hex())))
    return drafts
