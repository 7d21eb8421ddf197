"""A wait as it is shown to people: it may fall freely, and rises only when it rose by much."""

# A number that goes up and down with every look is believed by nobody.
RISES_BY = 0.15


def settled(shown: float | None, now: float | None) -> float | None:
    """The seconds to show, after `shown` was shown and when the database says `now`.

    None, from either side, is passed on at once: a wait that is not known is not shown.
    """
    if shown is None or now is None or now <= shown or now - shown > shown * RISES_BY:
        return now
    return shown
