"""The two pages, from the files in pages/. All inserted values are escaped."""

import json
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from essays.forms import LONGEST_ESSAY
from essays.tasks import TASKS, Task

FOLDER = Path(__file__).with_name("pages")


def practice(name: str, past: list[dict[str, Any]], completed: list[str]) -> str:
    return _fill(
        "practice.html",
        name=escape(name),
        options="\n".join(_option(key, task) for key, task in TASKS.items()),
        longest=str(LONGEST_ESSAY),
        past=escape(json.dumps(past)),
        completed=escape(json.dumps(completed)),
    )


def sign_in(wrong: str = "") -> str:
    return _fill("sign_in.html", wrong=escape(wrong), invalid="true" if wrong else "false")


def _option(key: str, task: Task) -> str:
    return (
        f'<option value="{escape(key)}" data-title="{escape(task.title)}"'
        f' data-prompt="{escape(task.prompt)}"'
        f' data-least="{task.least_words}" data-image="{"yes" if task.takes_image else "no"}">'
        f"{escape(task.title)}</option>"
    )


def _fill(file: str, **values: str) -> str:
    return Template((FOLDER / file).read_text(encoding="utf-8")).substitute(values)
