"""The pages, from the files in pages/. Everything that people typed is escaped."""

from html import escape
from pathlib import Path
from string import Template

from feedback.forms import LONGEST_ANSWER
from feedback.tasks import TASKS

FOLDER = Path(__file__).with_name("pages")


def tasks(name: str) -> str:
    cards = "\n".join(
        _fill(
            "task.html",
            key=escape(key),
            subject=escape(task.subject),
            title=escape(task.title),
            text=escape(task.text),
            longest=str(LONGEST_ANSWER),
        )
        for key, task in TASKS.items()
    )
    return _fill("tasks.html", name=escape(name), cards=cards)


def sign_in(wrong: str = "") -> str:
    return _fill("sign_in.html", wrong=escape(wrong), invalid="true" if wrong else "false")


def of_class() -> str:
    titles = "\n".join(
        f'<option value="{escape(key)}">{escape(task.title)}</option>'
        for key, task in TASKS.items()
    )
    return _fill("class.html", titles=titles)


def not_the_teacher() -> str:
    return _fill("not_the_teacher.html")


def _fill(file: str, **values: str) -> str:
    return Template((FOLDER / file).read_text(encoding="utf-8")).substitute(values)
