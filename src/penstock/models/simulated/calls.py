"""A call of the model, and how it went: for tests, and for people who watch it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Call:
    """Never what a prompt said; only how long it was."""

    path: str
    at: float  # when it had come wholly; seconds since 1970, as the others
    connected_at_once: int  # calls that were open then, this one among them
    model: str | None = None
    stream: bool = False
    prompt_chars: int = 0
    prompt_tokens: int = 0
    fault: str | None = None
    first_byte_at: float | None = None
    ended_at: float | None = None
    status: int | None = None  # None: no answer had begun
    gone: bool = False  # the client left before its answer was complete
