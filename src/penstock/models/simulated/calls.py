"""The record of a call to the model, for tests and for people who watch it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Call:
    """One call. It holds the length of the prompt, never its text."""

    path: str
    at: float  # when the request was complete; all times are seconds since 1970
    connected_at_once: int  # calls that were open at that time, including this one
    model: str | None = None
    stream: bool = False
    prompt_chars: int = 0
    prompt_tokens: int = 0
    fault: str | None = None
    first_byte_at: float | None = None
    ended_at: float | None = None
    status: int | None = None  # None: no answer was begun
    gone: bool = False  # the client left before its answer was complete
