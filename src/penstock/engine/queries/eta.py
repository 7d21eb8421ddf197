"""The expected waiting time for people: it may fall freely, and rises only by large steps."""

# People do not trust a number that goes up and down at every refresh.
RISES_BY = 0.15


def settled(shown: float | None, now: float | None) -> float | None:
    """The seconds to show, after `shown` was shown and when the database returns `now`.

    If either is None, `now` is returned unchanged: an unknown time is not shown.
    """
    if shown is None or now is None or now <= shown or now - shown > shown * RISES_BY:
        return now
    return shown
