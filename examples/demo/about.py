"""What is said of each of the five systems, in English and in German."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    name: str
    what: str
    who: str  # as whom one gets in
    hint: str  # what to try there


ABOUT: dict[str, dict[str, About]] = {
    "en": {
        "marking": About(
            name="Marking",
            what="Thirty answers of a class are handed to a function elsewhere, one at a time; "
            "each mark comes back by a callback.",
            who="as the teacher",
            hint="mark all answers of one assignment, then stop the function on the page "
            "“AI queue”.",
        ),
        "essays": About(
            name="Essays",
            what="People practise writing; an AI service reads and scores each essay in two "
            "steps, and none is paid twice.",
            who="as Ana",
            hint="send an essay and close the tab: it is analyzed all the same.",
        ),
        "scanner": About(
            name="Package scanner",
            what="Packages are scanned in processes of their own, in two tiers; what hangs or "
            "crashes recovers by itself.",
            who="as an author",
            hint="choose “Crashes once in tier 1”: the scan takes its worker along.",
        ),
        "feedback": About(
            name="Class feedback",
            what="Pupils get feedback from one local model, one answer at a time, with their "
            "place in the line. In German.",
            who="as the teacher",
            hint="let fifty pupils hand in at once, and stop the model meanwhile.",
        ),
        "studio": About(
            name="Image studio",
            what="Customers order pictures for credits; plans decide who goes first, and what "
            "does not come is refunded.",
            who="as customer 2 and operator",
            hint="order eight images, let one fail, and look at the balance.",
        ),
    },
    "de": {
        "marking": About(
            name="Korrektur",
            what="Dreißig Antworten einer Klasse gehen nacheinander an eine Funktion anderswo; "
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
            what="Pakete werden in eigenen Prozessen geprüft, in zwei Stufen; was hängt oder "
            "abstürzt, erholt sich von selbst.",
            who="als Autor",
            hint="wähle „Crashes once in tier 1“: Der Scan reißt seinen Worker mit.",
        ),
        "feedback": About(
            name="Rückmeldungen",
            what="Schüler bekommen Rückmeldung von einem lokalen Modell, eine nach der anderen, "
            "mit ihrem Platz in der Schlange.",
            who="als Lehrkraft",
            hint="lass fünfzig auf einmal abgeben und halte dabei die KI an.",
        ),
        "studio": About(
            name="Bildstudio",
            what="Kunden bestellen Bilder gegen Guthaben; Tarife entscheiden, wer zuerst "
            "drankommt, und was nicht kommt, wird erstattet.",
            who="als Kunde 2 und Betreiber",
            hint="bestell acht Bilder, lass eins misslingen und sieh dir das Guthaben an.",
        ),
    },
}
