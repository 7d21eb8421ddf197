"""What our own handlers raise when a provider does not do what it was asked."""

from penstock.errors import PenstockError
from penstock.providers.signal import Signal


class ProviderError(PenstockError):
    """A call that failed: a sentence of ours for people, and what was seen for `classify`.

    The provider's own words stay in the signal: they may quote the prompt.
    """

    public = False
    """Whether the message is a function's own, written for customers."""

    def __init__(self, message: str, signal: Signal) -> None:
        super().__init__(message)
        self.signal = signal
