"""How the small model of this example judges: by counting, so that the same text scores the same.

It stands in for a language model and pretends to be no more.
"""

import re
from collections.abc import Mapping
from typing import Any

from essays.tasks import TASKS

LINKERS = {
    "although",
    "because",
    "but",
    "finally",
    "first",
    "furthermore",
    "however",
    "moreover",
    "overall",
    "second",
    "since",
    "so",
    "then",
    "therefore",
    "thus",
    "whereas",
    "while",
}
ADVICE = {
    "task_response": "Say more: answer every part of the task and reach the number of words.",
    "coherence_and_cohesion": "Use paragraphs, and words that link one thought to the next.",
    "lexical_resource": "Repeat fewer words and choose more exact ones.",
    "grammatical_range": "Vary your sentences: neither all short nor all very long.",
}
STRONG = 7.0


def outline(essay: str, image: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the result of the first reading."""
    return {
        "words": len(_words(essay)),
        "sentences": len(_sentences(essay)),
        "paragraphs": sum(bool(part.strip()) for part in essay.split("\n\n")),
        "image": image["type"] if image else None,
    }


def score(task: str, essay: str, seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return bands from 1 to 9 in halves, and advice on the weakest."""
    words = _words(essay)
    count = max(1, len(words))
    longest = count / max(1, len(_sentences(essay)))
    criteria = {
        "task_response": _band(9 * min(1, count / TASKS[task].least_words)),
        "coherence_and_cohesion": _band(
            4 + min(3, seen["paragraphs"]) + min(2, 40 * _share(words, LINKERS))
        ),
        "lexical_resource": _band(2 + 6 * (len(set(words)) / count) ** 0.5 + min(1, count / 400)),
        "grammatical_range": _band(8.5 - abs(longest - 17) / 4),
    }
    band = _band(sum(criteria.values()) / len(criteria))
    weakest = min(criteria, key=lambda name: criteria[name])
    advice = ADVICE[weakest] if criteria[weakest] < STRONG else "Strong throughout. Keep going."
    return {"band": band, "criteria": criteria, "feedback": advice, "outline": dict(seen)}


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*", text.lower())


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"[.!?]+", text) if part.strip()]


def _share(words: list[str], among: set[str]) -> float:
    return sum(word in among for word in words) / max(1, len(words))


def _band(value: float) -> float:
    return min(9.0, max(1.0, round(value * 2) / 2))
