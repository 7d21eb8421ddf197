"""How an answer is marked: a point for each thing that is in it. A model would stand here."""

from typing import Any


def mark(payload: dict[str, Any]) -> dict[str, Any]:
    """Score, out of how many, and what to say to the pupil."""
    text = payload["answer"].lower()
    has: list[str] = []
    lacks: list[str] = []
    for one in payload["criteria"]:
        found = any(word in text for word in one["words"])
        (has if found else lacks).append(one["name"])
    return {
        "score": len(has),
        "out_of": len(has) + len(lacks),
        "feedback": " ".join(filter(None, (_praise(has), _advice(lacks)))),
    }


def _praise(has: list[str]) -> str:
    return f"Well explained: {_list(has)}." if has else ""


def _advice(lacks: list[str]) -> str:
    if not lacks:
        return "Nothing is missing."
    return f"Still missing: {_list(lacks)}."


def _list(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
