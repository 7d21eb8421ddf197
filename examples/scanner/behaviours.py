"""How a scan can be told to behave, so that everything that goes wrong can be watched.

A real scanner has no such choice: hostile packages make it themselves.
"""

import os
import signal
import time
from dataclasses import dataclass
from typing import Literal

from scanner.times import SLOW_SECONDS

Behaviour = Literal[
    "normal",
    "findings",
    "slow_tier1",
    "hang_tier1_once",
    "hang_tier1",
    "hang_tier2",
    "crash_tier1_once",
    "crash_tier1",
]

# Scans run in children of a server that has imported this module and was started by the worker: so
# the parent of whoever reads this line is the worker.
_WORKER = os.getppid()
_NAP_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Choice:
    title: str
    about: str


CHOICES: dict[Behaviour, Choice] = {
    "normal": Choice("Normal", "Both tiers look at the text."),
    "findings": Choice("Finds something", "Tier 2 has a finding, whatever the text is."),
    "slow_tier1": Choice("Slow in tier 1", "A long silence, then it goes on by itself."),
    "hang_tier1_once": Choice("Hangs once in tier 1", "The next start works."),
    "hang_tier1": Choice("Hangs in tier 1", "Every time."),
    "hang_tier2": Choice("Hangs in tier 2", "Every time."),
    "crash_tier1_once": Choice("Crashes once in tier 1", "It takes its worker along."),
    "crash_tier1": Choice("Crashes in tier 1", "It takes its worker along, every time."),
}


def act(behaviour: Behaviour, tier: int, attempt: int) -> None:
    """Simulate the fault that was chosen for this tier, if any."""
    match behaviour, tier, attempt:
        case ("slow_tier1", 1, _):
            time.sleep(SLOW_SECONDS)
        case ("hang_tier1_once", 1, 1) | ("hang_tier1", 1, _) | ("hang_tier2", 2, _):
            while True:
                time.sleep(_NAP_SECONDS)
        case ("crash_tier1_once", 1, 1) | ("crash_tier1", 1, _):
            # As a scan that eats all memory of the machine: the worker has no time for a word.
            os.kill(_WORKER, signal.SIGKILL)
            time.sleep(_NAP_SECONDS)
        case _:
            return
