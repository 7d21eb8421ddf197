"""What happened, in sentences, with what was measured. A line may change while it is going on."""

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
        """The same happening, of which more is known now."""
        self.key = key
        self.values |= values


class Story:
    """The newest lines, which everybody reads in a language of their own."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque(maxlen=MOST_LINES)
        self._number = 0

    def tell(self, key: str, **values: Any) -> Line:
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
