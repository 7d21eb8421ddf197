"""The pages, from the files in pages/. All inserted values are escaped."""

from html import escape
from pathlib import Path
from string import Template
from typing import Any
from uuid import UUID

from scanner.behaviours import CHOICES
from scanner.forms import LONGEST_NAME, LONGEST_TEXT
from scanner.times import STALE_SECONDS, STUCK_SECONDS, in_words

STATES = {
    "RECEIVED": "Received",
    "TIER1_SCANNING": "Tier 1 scanning",
    "TIER2_SCANNING": "Tier 2 scanning",
    "PUBLISHED": "Published",
    "REJECTED": "Rejected",
}
FOLDER = Path(__file__).with_name("pages")


def submit() -> str:
    choices = "\n".join(
        _fill(
            "choice.html",
            key=escape(key),
            title=escape(choice.title),
            about=escape(choice.about),
            checked="checked" if key == "normal" else "",
        )
        for key, choice in CHOICES.items()
    )
    return _page(
        "Submit a package",
        _fill(
            "submit.html",
            choices=choices,
            longest_name=str(LONGEST_NAME),
            longest_text=str(LONGEST_TEXT),
            stale=in_words(STALE_SECONDS),
            stuck=in_words(STUCK_SECONDS),
        ),
        script="submit.js",
    )


def status(submission: UUID, name: str) -> str:
    body = _fill("status.html", id=str(submission), name=escape(name))
    return _page(name, body, script="status.js")


def packages(found: list[dict[str, Any]]) -> str:
    lines = "\n".join(
        _fill(
            "package.html",
            name=escape(one["name"]),
            state=one["state"],
            word=STATES[one["state"]],
            at=one["createdAt"],
        )
        for one in found
    )
    empty = "" if found else '<p class="quiet">Nothing has been submitted yet.</p>'
    body = _fill("packages.html", lines=lines, empty=empty)
    return _page("Packages", body, script="packages.js")


def operator() -> str:
    return _page("Operator", _fill("operator.html"), script="operator.js")


def wrong(sentence: str) -> str:
    return _page("Not here", _fill("wrong.html", sentence=escape(sentence)), script=None)


def _page(title: str, body: str, *, script: str | None) -> str:
    tag = f'<script type="module" src="/static/{script}"></script>' if script else ""
    return _fill("page.html", title=escape(title), script=tag, body=body)


def _fill(file: str, **values: str) -> str:
    return Template((FOLDER / file).read_text(encoding="utf-8")).substitute(values)
