"""What our own handlers raise when a provider does not do what it was asked."""

from penstock.base.safe_access import read
from penstock.errors import PenstockError
from penstock.net.signal import Signal

# Characters of a provider's own error text that are kept: some quote the whole prompt.
PROVIDER_TEXT_MAX = 1_000


class ProviderError(PenstockError):
    """A call that failed: a sentence of ours for people, and what was seen for `classify`.

    The provider's own words are not in the message, which apps may log: they may quote the prompt.
    They are kept with the attempt, for operators.
    """

    public = False
    """Whether the message is a function's own, written for customers."""

    def __init__(self, message: str, signal: Signal) -> None:
        super().__init__(message)
        self.signal = signal

    @property
    def provider_text(self) -> str:
        """What the provider says is wrong; nothing where it says nothing."""
        text = read(self.signal, "message")
        if not isinstance(text, str) or len(text) <= PROVIDER_TEXT_MAX:
            return text or ""
        return f"{text[:PROVIDER_TEXT_MAX]}…"
