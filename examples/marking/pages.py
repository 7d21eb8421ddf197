"""The pages, from the files in pages/. All inserted values are escaped."""

from html import escape
from pathlib import Path
from string import Template
from typing import Any

from marking.assignments import ASSIGNMENTS

FOLDER = Path(__file__).with_name("pages")


def results(counts: dict[str, dict[str, Any]]) -> str:
    cards = "\n".join(
        _fill(
            "card.html",
            key=escape(key),
            subject=escape(asked.subject),
            title=escape(asked.title),
            marked=str(counts[key]["marked"]),
            answers=str(counts[key]["answers"]),
        )
        for key, asked in ASSIGNMENTS.items()
    )
    return _fill("results.html", cards=cards)


def assignment(key: str) -> str:
    asked = ASSIGNMENTS[key]
    return _fill(
        "assignment.html",
        key=escape(key),
        subject=escape(asked.subject),
        title=escape(asked.title),
        question=escape(asked.question),
        criteria=escape(", ".join(one.name for one in asked.criteria)),
    )


def queue() -> str:
    titles = "\n".join(
        f'<option value="{escape(key)}">{escape(asked.title)}</option>'
        for key, asked in ASSIGNMENTS.items()
    )
    return _fill("queue.html", titles=titles)


def not_the_teacher() -> str:
    return not_there("This is for the teacher: open the link that is printed at the start.")


def not_there(sentence: str) -> str:
    return _fill("not_there.html", sentence=escape(sentence))


def _fill(file: str, **values: str) -> str:
    return Template((FOLDER / file).read_text(encoding="utf-8")).substitute(values)
