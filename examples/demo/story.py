"""The log of what happened, in sentences with measurements. A line changes as more is known."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from demo import words

MOST_LINES = 40


@dataclass(slots=True)
class Line:
    number: int
    at: datetime
    key: str
    values: dict[str, Any]

    def become(self, key: str, **values: Any) -> None:
        """Change the text of this event, of which more is known now."""
        self.key = key
        self.values |= values


class Story:
    """The newest lines; each reader gets them in their own language."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque(maxlen=MOST_LINES)
        self._number = 0

    def add(self, key: str, **values: Any) -> Line:
        self._number += 1
        line = Line(self._number, datetime.now(UTC), key, values)
        self._lines.append(line)
        return line

    def read(self, language: str) -> Sequence[dict[str, Any]]:
        """Newest first."""
        return [
            {
                "number": line.number,
                "at": line.at.isoformat(),
                "tone": words.TONES.get(line.key, "plain"),
                "text": words.sentence(language, line.key, line.values),
            }
            for line in reversed(self._lines)
        ]
