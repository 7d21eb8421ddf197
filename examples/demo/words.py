"""All texts of the landing page, in English and in German."""

from typing import Any

LANGUAGES = ("en", "de")

# The tone of each line of the log.
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
        "begun": "The demo started: database, models, worker and five web apps.",
        "worker_lost": "The worker (process {pid}) {how}. {owners}.",
        "worker_lost_again": "The worker (process {pid}) {how}. {owned}. The next one exited, too.",
        "worker_healed": "The worker (process {pid}) {how}. {owned}. {seconds} later a new "
        "worker had {all_of_them}.",
        "worker_healed_partly": "The worker (process {pid}) {how}. {owned}. {seconds} later a new "
        "worker had {had}; {ended} without another attempt.",
        "worker_idle_healed": "The worker (process {pid}) {how}. It had no job. {seconds} later a "
        "new one was ready.",
        "worker_idle_late": "The worker (process {pid}) {how}. It had no job. After {seconds} no "
        "new one is ready; the terminal may show why.",
        "worker_late": "The worker (process {pid}) {how}. {owned}. After {seconds}, {left} of "
        "them wait for their next attempt.",
        "model_stopped": "The model was stopped. {waits} for it; {failures}.",
        "model_lost": "The model (process {pid}) exited and is restarted. {waits} for it.",
        "model_back": "The model was unavailable for {seconds}. {waited}; {failures}. {first} "
        "after it answered again, a job was running.",
        "model_back_unused": "The model was unavailable for {seconds}. {waited}; {failures}.",
        "model_late": "The model has been unavailable for {seconds}. {waits} for it; {failures}. "
        "The measurement ends here.",
        "sites_lost": "The web apps (process {pid}) exited and are restarted.",
        "sites_healed": "The web apps (process {pid}) exited. {seconds} later they answered again.",
        "sites_late": "The web apps (process {pid}) exited. After {seconds} they do not answer; "
        "the terminal may show why.",
    },
    "de": {
        "begun": "Die Vorführung hat begonnen: Datenbank, Modelle, Worker und fünf Web-Apps.",
        "worker_lost": "Der Worker (Prozess {pid}) {how}. {owners}.",
        "worker_lost_again": "Der Worker (Prozess {pid}) {how}. {owned}. Auch der nächste wurde "
        "beendet.",
        "worker_healed": "Der Worker (Prozess {pid}) {how}. {owned}. {seconds} später hatte ein "
        "neuer {all_of_them}.",
        "worker_healed_partly": "Der Worker (Prozess {pid}) {how}. {owned}. {seconds} später hatte "
        "ein neuer {had}; {ended} ohne neuen Versuch.",
        "worker_idle_healed": "Der Worker (Prozess {pid}) {how}. Er hatte keinen Auftrag. "
        "{seconds} später stand ein neuer bereit.",
        "worker_idle_late": "Der Worker (Prozess {pid}) {how}. Er hatte keinen Auftrag. Nach "
        "{seconds} steht kein neuer bereit; vielleicht zeigt das Terminal, warum.",
        "worker_late": "Der Worker (Prozess {pid}) {how}. {owned}. Nach {seconds} warten {left} "
        "davon auf den nächsten Versuch.",
        "model_stopped": "Das Modell wurde angehalten. {waits} darauf; {failures}.",
        "model_lost": "Das Modell (Prozess {pid}) ist ausgefallen und wird neu gestartet. {waits} "
        "darauf.",
        "model_back": "Das Modell war {seconds} nicht erreichbar. {waited}; {failures}. {first} "
        "nach seiner Rückkehr lief wieder ein Auftrag.",
        "model_back_unused": "Das Modell war {seconds} nicht erreichbar. {waited}; {failures}.",
        "model_late": "Das Modell ist seit {seconds} nicht erreichbar. {waits} darauf; "
        "{failures}. Die Messung endet hier.",
        "sites_lost": "Die Web-Apps (Prozess {pid}) sind ausgefallen und werden neu gestartet.",
        "sites_healed": "Die Web-Apps (Prozess {pid}) sind ausgefallen. {seconds} später "
        "antworteten sie wieder.",
        "sites_late": "Die Web-Apps (Prozess {pid}) sind ausgefallen. Nach {seconds} antworten sie "
        "nicht; vielleicht zeigt das Terminal, warum.",
    },
}

# How a worker exited: by a signal, with an exit code, or gracefully.
_HOW: dict[str, dict[str, str]] = {
    "en": {
        "killed": "was killed",
        "gave_up": "exited with an error; the terminal shows why",
        "left": "stopped on request",
    },
    "de": {
        "killed": "wurde abgeschossen",
        "gave_up": "wurde mit einem Fehler beendet; das Terminal zeigt, warum",
        "left": "wurde auf Anforderung beendet",
    },
}

# Texts by number: none, one, more.
_COUNTS: dict[str, dict[str, tuple[str, str, str]]] = {
    "en": {
        "owners": ("It had no job", "1 job has no owner", "{n} jobs have no owner"),
        "owned": ("It had no job", "1 job had no owner", "{n} jobs had no owner"),
        "all_of_them": ("them", "it", "all of them"),
        "had": ("none of them", "1 of them", "{n} of them"),
        "ended": ("none finished", "1 finished", "{n} finished"),
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
        "lead": "Five web apps share one durable queue on Postgres. Simulated visitors use them "
        "while you watch. The model is simulated, too; everything else is real.",
        "dashboard": "Dashboard",
        "docs": "API",
        "other": "Deutsch",
        "systems": "The systems",
        "waiting": "waiting",
        "running": "running",
        "done": "finished in 24 h",
        "newest": "Newest job",
        "none": "No jobs yet.",
        "open": "Open",
        "try": "Try",
        "break": "Break it",
        "break_lead": "These buttons really stop processes. No job is lost.",
        "model": "Model",
        "model_is": "Four of the five systems call it.",
        "worker": "Worker",
        "worker_is": "Runs the jobs of all five systems.",
        "stop_model": "Stop the model",
        "start_model": "Start the model",
        "kill_worker": "Kill the worker",
        "on": "process {pid}",
        "off": "stopped",
        "starting": "starting",
        "story": "What happened",
        "gone": "The demo does not answer. It was stopped or is restarting.",
        "idle": "The visitors pause: nobody has used this page for two hours. Reload it, and they "
        "continue.",
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
        "done": "fertig in 24 h",
        "newest": "Neuester Auftrag",
        "none": "Noch kein Auftrag.",
        "open": "Öffnen",
        "try": "Probiere",
        "break": "Mach etwas kaputt",
        "break_lead": "Diese Knöpfe beenden wirklich Prozesse. Kein Auftrag geht verloren.",
        "model": "Modell",
        "model_is": "Vier der fünf Systeme rufen es auf.",
        "worker": "Worker",
        "worker_is": "Er führt die Aufträge aller fünf Systeme aus.",
        "stop_model": "Modell anhalten",
        "start_model": "Modell starten",
        "kill_worker": "Worker abschießen",
        "on": "Prozess {pid}",
        "off": "angehalten",
        "starting": "startet",
        "story": "Was passiert ist",
        "gone": "Die Vorführung antwortet nicht. Sie wurde beendet oder startet gerade neu.",
        "idle": "Die Besucher machen Pause: Seit zwei Stunden hat niemand diese Seite benutzt. "
        "Lade sie neu, dann geht es weiter.",
        "paused": "wartet auf das Modell",
        "no_worker": "wartet auf einen Worker",
    },
}


def choose(wanted: str | None, accepted: str) -> str:
    """Return the language of the address, otherwise the first one that the browser accepts."""
    if wanted in LANGUAGES:
        return wanted
    first = accepted.split(",", maxsplit=1)[0].strip().lower()
    return "de" if first.startswith("de") else "en"


def sentence(language: str, key: str, values: dict[str, Any]) -> str:
    texts = {name: _in_words(language, name, value) for name, value in values.items()}
    return _STORY[language][key].format(**texts)


def _in_words(language: str, name: str, value: Any) -> str:
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
