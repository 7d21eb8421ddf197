"""How long things may take, in minutes as they are meant, all shortened by one factor.

With SCANNER_TIME_SCALE=0.1 the three minutes until the yellow banner are eighteen seconds. Every
process of the app has to be given the same factor.
"""

import math
import os

from penstock import PenstockError

SHORTEST, LONGEST = 0.001, 1.0


def _scale(said: str) -> float:
    try:
        scale = float(said)
    except ValueError:
        scale = math.nan
    if not SHORTEST <= scale <= LONGEST:
        raise PenstockError(
            f"SCANNER_TIME_SCALE is {said!r}; it may be a number from {SHORTEST:g} to {LONGEST:g}."
        )
    return scale


def _tier_seconds(said: str) -> float:
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < STALE_SECONDS:
        raise PenstockError(
            f"SCANNER_TIER_SECONDS is {said!r}; it may be a number from 0 up to what is taken for "
            f"no news, {STALE_SECONDS:g} (seconds)."
        )
    return seconds


MINUTE = 60 * _scale(os.environ.get("SCANNER_TIME_SCALE") or "1")
STALE_SECONDS = 3 * MINUTE
"""Without progress for this time, a scan is shown as late."""
STUCK_SECONDS = 5 * MINUTE
"""Without progress for this time, it is started again."""
TIMEOUT_SECONDS = 15 * MINUTE
"""The time limit of a scan that makes progress."""
SLOW_SECONDS = 4 * MINUTE
"""Between the two: long enough for the banner, but too short for a recovery."""
# The duration of a tier without faults, long enough to watch. It is not shortened.
TIER_SECONDS = _tier_seconds(os.environ.get("SCANNER_TIER_SECONDS") or "3")


def in_words(seconds: float) -> str:
    """For people who wait: "18 seconds", "3 minutes"."""
    if seconds < 120:
        return f"{seconds:.2g} seconds" if seconds < 10 else f"{seconds:.0f} seconds"
    return f"{seconds / 60:.3g} minutes"
