"""The behaviour of a simulated model without faults."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from penstock.base.settings import duration
from penstock.errors import Invalid

_LAST_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    control: int | None = None  # a second port for commands that stays up; 0: a free one
    latency: str | float | timedelta = 0  # until the first token
    tokens_per_second: float | None = None  # None: as fast as it can
    tokens: int = 40  # the length of an answer in free text
    jitter: float = 0  # 0.2: latency and pace vary by a fifth, up and down
    seed: int = 0  # of the jitter and of faults with a chance
    slots: int = 1  # answers at the same time
    max_queue: int | None = None  # calls that may wait for a slot; None: no limit
    models: tuple[str, ...] | None = None  # None: any name is accepted
    num_ctx: int = 4_096  # the tokens of a prompt, unless the call sets num_ctx
    api_key: str | None = None  # None: no key is required
    log: Path | None = None  # one line of JSON for each completed call

    def __post_init__(self) -> None:
        for names, fits, allowed in _BOUNDS:
            for name in names:
                value = getattr(self, name)
                if value is not None and not fits(value):
                    raise Invalid(
                        f"{name} is {value!r}; it may be {allowed}",
                        code="invalid_option",
                        field=name,
                        allowed=allowed,
                    )
        _ = self.latency_seconds

    @property
    def latency_seconds(self) -> float:
        return duration(self.latency, field="latency").total_seconds()

    def knows(self, model: str) -> bool:
        """Return whether the model exists; as in Ollama, `llama3` means `llama3:latest`."""
        return self.models is None or tagged(model) in map(tagged, self.models)

    @property
    def listed(self) -> tuple[str, ...]:
        return ("llama3",) if self.models is None else self.models


def tagged(model: str) -> str:
    return model if ":" in model else f"{model}:latest"


_BOUNDS: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (("tokens", "slots", "num_ctx"), lambda value: value >= 1, "1 or more"),
    (("max_queue",), lambda value: value >= 0, "0 or more"),
    (("tokens_per_second",), lambda value: value > 0, "more than 0"),
    (("jitter",), lambda value: 0 <= value <= 1, "from 0 to 1"),
    (("port", "control"), lambda value: 0 <= value <= _LAST_PORT, "from 0 (a free one) to 65535"),
)
