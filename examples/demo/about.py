"""Descriptions of the five systems, in English and in German."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    name: str
    what: str
    who: str  # the user who is signed in
    hint: str  # what to try


ABOUT: dict[str, dict[str, About]] = {
    "en": {
        "marking": About(
            name="Marking",
            what="Thirty answers of a class are sent to an outside function, one at a time; "
            "each mark comes back by a callback.",
            who="as the teacher",
            hint="mark all answers of one assignment, then stop the function on the page "
            "“AI queue”.",
        ),
        "essays": About(
            name="Essays",
            what="People practise writing; an AI service reads and scores each essay in two "
            "steps and never pays for a step twice.",
            who="as Ana",
            hint="send an essay and close the tab: it is scored anyway.",
        ),
        "scanner": About(
            name="Package scanner",
            what="Packages are scanned in separate processes, in two tiers; scans that hang or "
            "crash recover automatically.",
            who="as an author",
            hint="choose “Crashes once in tier 1”: the scan kills its worker.",
        ),
        "feedback": About(
            name="Class feedback",
            what="Pupils get feedback from one local model, one answer at a time, with their "
            "position in the queue. In German.",
            who="as the teacher",
            hint="let fifty pupils submit at once, and stop the model meanwhile.",
        ),
        "studio": About(
            name="Image studio",
            what="Customers order pictures for credits; plans decide who goes first, and missing "
            "pictures are refunded.",
            who="as customer 2 and operator",
            hint="order eight images, let one fail, and check the balance.",
        ),
    },
    "de": {
        "marking": About(
            name="Korrektur",
            what="Dreißig Antworten einer Klasse gehen nacheinander an eine externe Funktion; "
            "jede Note kommt durch einen Rückruf.",
            who="als Lehrkraft",
            hint="lass alle Antworten einer Aufgabe bewerten und halte auf der Seite „AI "
            "queue“ die Funktion an.",
        ),
        "essays": About(
            name="Aufsätze",
            what="Leute üben schreiben; ein KI-Dienst liest und bewertet jeden Aufsatz in zwei "
            "Schritten, und keiner wird zweimal bezahlt.",
            who="als Ana",
            hint="schick einen Aufsatz ab und schließe das Fenster: Er wird trotzdem bewertet.",
        ),
        "scanner": About(
            name="Paket-Scanner",
            what="Pakete werden in eigenen Prozessen geprüft, in zwei Stufen; hängende und "
            "abgestürzte Prüfungen werden automatisch wiederholt.",
            who="als Autor",
            hint="wähle „Crashes once in tier 1“: Der Scan beendet seinen Worker.",
        ),
        "feedback": About(
            name="Rückmeldungen",
            what="Schüler bekommen Rückmeldung von einem lokalen Modell, eine nach der anderen, "
            "mit ihrem Platz in der Warteschlange.",
            who="als Lehrkraft",
            hint="lass fünfzig auf einmal abgeben und halte dabei die KI an.",
        ),
        "studio": About(
            name="Bildstudio",
            what="Kunden bestellen Bilder gegen Guthaben; Tarife entscheiden, wer zuerst "
            "drankommt, und fehlende Bilder werden erstattet.",
            who="als Kunde 2 und Betreiber",
            hint="bestell acht Bilder, lass eins misslingen und sieh dir das Guthaben an.",
        ),
    },
}
