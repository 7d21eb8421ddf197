"""The five systems, and what the demo must know about each."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class System:
    key: str  # also the package: examples/marking is `marking`
    queue: str
    needs_model: bool = True


SYSTEMS = (
    System("marking", "marking"),
    System("essays", "essays"),
    System("scanner", "scanner", needs_model=False),
    System("feedback", "ollama"),
    System("studio", "studio"),
)
QUEUES = [one.queue for one in SYSTEMS]
MODEL_QUEUES = [one.queue for one in SYSTEMS if one.needs_model]
