"""The exception that our own handlers raise when a call to a provider fails."""

from penstock.base.safe_access import read
from penstock.errors import PenstockError
from penstock.net.signal import Signal

# How many characters of a provider's error text are kept: some quote the whole prompt.
PROVIDER_TEXT_MAX = 1_000


class ProviderError(PenstockError):
    """A failed call: a message of our own for people, and the signal for `classify`.

    The provider's own text is not in the message, because apps may log it and the text may quote
    the prompt. The text is stored with the attempt, for operators.
    """

    public = False
    """Whether the message comes from a function and is written for customers."""

    def __init__(self, message: str, signal: Signal) -> None:
        super().__init__(message)
        self.signal = signal

    @property
    def provider_text(self) -> str:
        """The provider's own error text; empty if there is none."""
        text = read(self.signal, "message")
        if not isinstance(text, str) or len(text) <= PROVIDER_TEXT_MAX:
            return text or ""
        return f"{text[:PROVIDER_TEXT_MAX]}…"
