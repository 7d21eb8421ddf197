"""Every word of the landing page, in English and in German."""

from typing import Any

LANGUAGES = ("en", "de")

# How a line of the story is to be taken.
TONES = {
    "worker_lost": "bad",
    "worker_lost_again": "bad",
    "worker_late": "bad",
    "worker_idle_late": "bad",
    "worker_healed_partly": "bad",
    "model_late": "bad",
    "sites_late": "bad",
    "model_stopped": "bad",
    "model_lost": "bad",
    "sites_lost": "bad",
    "worker_healed": "good",
    "worker_idle_healed": "good",
    "model_back": "good",
    "model_back_unused": "good",
    "sites_healed": "good",
}

_STORY: dict[str, dict[str, str]] = {
    "en": {
        "begun": "The demo began: database, models, worker and five web apps.",
        "worker_lost": "The worker (process {pid}) {how}. {owners}.",
        "worker_lost_again": "The worker (process {pid}) {how}. {owned}. The next one ended, too.",
        "worker_healed": "The worker (process {pid}) {how}. {owned}. {seconds} later a new "
        "worker had {all_of_them}.",
        "worker_healed_partly": "The worker (process {pid}) {how}. {owned}. {seconds} later a new "
        "worker had {had}; {ended} without another start.",
        "worker_idle_healed": "The worker (process {pid}) {how}. It had no job. {seconds} later a "
        "new one stood by.",
        "worker_idle_late": "The worker (process {pid}) {how}. It had no job. After {seconds} no "
        "new one stands by; the terminal may say why.",
        "worker_late": "The worker (process {pid}) {how}. {owned}. After {seconds}, {left} of "
        "them wait for their next start.",
        "model_stopped": "The model was stopped. {waits} for it; {failures}.",
        "model_lost": "The model (process {pid}) ended and is started again. {waits} for it.",
        "model_back": "The model was away for {seconds}. {waited}; {failures}. {first} after it "
        "answered again, a job was at work.",
        "model_back_unused": "The model was away for {seconds}. {waited}; {failures}.",
        "model_late": "The model has been away for {seconds}. {waits} for it; {failures}. What "
        "comes of it is not watched any longer.",
        "sites_lost": "The web apps (process {pid}) ended and are started again.",
        "sites_healed": "The web apps (process {pid}) ended. {seconds} later they answered again.",
        "sites_late": "The web apps (process {pid}) ended. After {seconds} they do not answer; the "
        "terminal may say why.",
    },
    "de": {
        "begun": "Die Vorführung hat begonnen: Datenbank, Modelle, Worker und fünf Web-Apps.",
        "worker_lost": "Der Worker (Prozess {pid}) {how}. {owners}.",
        "worker_lost_again": "Der Worker (Prozess {pid}) {how}. {owned}. Auch der nächste endete.",
        "worker_healed": "Der Worker (Prozess {pid}) {how}. {owned}. {seconds} später hatte ein "
        "neuer {all_of_them}.",
        "worker_healed_partly": "Der Worker (Prozess {pid}) {how}. {owned}. {seconds} später hatte "
        "ein neuer {had}; {ended} ohne neuen Start.",
        "worker_idle_healed": "Der Worker (Prozess {pid}) {how}. Er hatte keinen Auftrag. "
        "{seconds} später stand ein neuer bereit.",
        "worker_idle_late": "Der Worker (Prozess {pid}) {how}. Er hatte keinen Auftrag. Nach "
        "{seconds} steht kein neuer bereit; vielleicht sagt das Terminal, warum.",
        "worker_late": "Der Worker (Prozess {pid}) {how}. {owned}. Nach {seconds} warten {left} "
        "davon auf den nächsten Start.",
        "model_stopped": "Das Modell wurde angehalten. {waits} darauf; {failures}.",
        "model_lost": "Das Modell (Prozess {pid}) ist ausgefallen und wird neu gestartet. {waits} "
        "darauf.",
        "model_back": "Das Modell war {seconds} weg. {waited}; {failures}. {first} nach seiner "
        "Rückkehr lief wieder ein Auftrag.",
        "model_back_unused": "Das Modell war {seconds} weg. {waited}; {failures}.",
        "model_late": "Das Modell ist seit {seconds} weg. {waits} darauf; {failures}. Was daraus "
        "wird, sieht sich niemand mehr an.",
        "sites_lost": "Die Web-Apps (Prozess {pid}) sind ausgefallen und werden neu gestartet.",
        "sites_healed": "Die Web-Apps (Prozess {pid}) sind ausgefallen. {seconds} später "
        "antworteten sie wieder.",
        "sites_late": "Die Web-Apps (Prozess {pid}) sind ausgefallen. Nach {seconds} antworten sie "
        "nicht; vielleicht sagt das Terminal, warum.",
    },
}

# How a worker ended: by a signal, with an exit code, or in good order.
_HOW: dict[str, dict[str, str]] = {
    "en": {
        "killed": "was killed",
        "gave_up": "gave up; the terminal says why",
        "left": "ended, as somebody had told it to",
    },
    "de": {
        "killed": "wurde abgeschossen",
        "gave_up": "hat aufgegeben; das Terminal sagt, warum",
        "left": "ist gegangen, weil es ihm jemand gesagt hat",
    },
}

# By number: none, one, more.
_COUNTS: dict[str, dict[str, tuple[str, str, str]]] = {
    "en": {
        "owners": ("No job was with it", "1 job has no owner", "{n} jobs have no owner"),
        "owned": ("It had no job", "1 job had no owner", "{n} jobs had no owner"),
        "all_of_them": ("them", "it", "all of them"),
        "had": ("none of them", "1 of them", "{n} of them"),
        "ended": ("none ended", "1 ended", "{n} ended"),
        "waits": ("No job waits", "1 job waits", "{n} jobs wait"),
        "waited": ("No job had waited", "1 job had waited", "{n} jobs had waited"),
        "failures": ("none has failed", "1 has failed", "{n} have failed"),
    },
    "de": {
        "owners": (
            "Er hatte keinen Auftrag",
            "1 Auftrag gehört niemandem",
            "{n} Aufträge gehören niemandem",
        ),
        "owned": (
            "Er hatte keinen Auftrag",
            "1 Auftrag gehörte niemandem",
            "{n} Aufträge gehörten niemandem",
        ),
        "all_of_them": ("sie", "ihn", "alle"),
        "had": ("keinen davon", "1 davon", "{n} davon"),
        "ended": ("keiner endete", "1 endete", "{n} endeten"),
        "waits": ("Kein Auftrag wartet", "1 Auftrag wartet", "{n} Aufträge warten"),
        "waited": (
            "Kein Auftrag hatte gewartet",
            "1 Auftrag hatte gewartet",
            "{n} Aufträge hatten gewartet",
        ),
        "failures": ("keiner ist gescheitert", "1 ist gescheitert", "{n} sind gescheitert"),
    },
}

PAGE: dict[str, dict[str, str]] = {
    "en": {
        "title": "Penstock: five systems, live",
        "lead": "Five web apps share one durable queue on Postgres. Visitors use them while you "
        "look. The model is simulated; everything else is real.",
        "dashboard": "Dashboard",
        "docs": "API",
        "other": "Deutsch",
        "systems": "The systems",
        "waiting": "waiting",
        "running": "running",
        "done": "ended in 24 h",
        "newest": "Newest job",
        "none": "No job yet.",
        "open": "Open",
        "try": "Try",
        "break": "Break it",
        "break_lead": "Nothing here is acted: processes really end. No job is lost.",
        "model": "Model",
        "model_is": "What four of the five systems call.",
        "worker": "Worker",
        "worker_is": "Runs the jobs of all five systems.",
        "stop_model": "Stop the model",
        "start_model": "Start it again",
        "kill_worker": "Kill the worker",
        "on": "process {pid}",
        "off": "stopped",
        "starting": "starting",
        "story": "What happened",
        "gone": "The demo does not answer. It was ended, or is being started again.",
        "resting": "The visitors rest: nobody has pressed anything or opened this page for two "
        "hours. Reload it, and they go on.",
        "paused": "waits for the model",
        "no_worker": "waits for a worker",
    },
    "de": {
        "title": "Penstock: fünf Systeme, live",
        "lead": "Fünf Web-Apps teilen sich eine Warteschlange in Postgres, die nichts verliert. "
        "Besucher benutzen sie, während du zusiehst. Das Modell ist simuliert, alles andere echt.",
        "dashboard": "Dashboard",
        "docs": "API",
        "other": "English",
        "systems": "Die Systeme",
        "waiting": "warten",
        "running": "laufen",
        "done": "beendet in 24 h",
        "newest": "Neuester Auftrag",
        "none": "Noch kein Auftrag.",
        "open": "Öffnen",
        "try": "Probiere",
        "break": "Mach etwas kaputt",
        "break_lead": "Nichts davon ist gespielt: Die Prozesse enden wirklich. Kein Auftrag geht "
        "verloren.",
        "model": "Modell",
        "model_is": "Das rufen vier der fünf Systeme auf.",
        "worker": "Worker",
        "worker_is": "Er führt die Aufträge aller fünf Systeme aus.",
        "stop_model": "Modell anhalten",
        "start_model": "Wieder starten",
        "kill_worker": "Worker abschießen",
        "on": "Prozess {pid}",
        "off": "angehalten",
        "starting": "startet",
        "story": "Was passiert ist",
        "gone": "Die Vorführung antwortet nicht. Sie wurde beendet oder startet gerade neu.",
        "resting": "Die Besucher ruhen: Seit zwei Stunden hat niemand etwas gedrückt oder diese "
        "Seite geöffnet. Lade sie neu, dann geht es weiter.",
        "paused": "wartet auf das Modell",
        "no_worker": "wartet auf einen Worker",
    },
}


def choose(said: str | None, accepted: str) -> str:
    """What an address asks for; else what the browser asks for first."""
    if said in LANGUAGES:
        return said
    first = accepted.split(",", maxsplit=1)[0].strip().lower()
    return "de" if first.startswith("de") else "en"


def sentence(language: str, key: str, values: dict[str, Any]) -> str:
    told = {name: _said(language, name, value) for name, value in values.items()}
    return _STORY[language][key].format(**told)


def _said(language: str, name: str, value: Any) -> str:
    if name == "how":
        return _HOW[language][value]
    if name in _COUNTS[language]:
        return _COUNTS[language][name][min(value, 2)].format(n=value)
    if isinstance(value, float):
        return _seconds(language, value)
    return str(value)


def _seconds(language: str, seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    text = f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return text.replace(".", ",") if language == "de" else text
