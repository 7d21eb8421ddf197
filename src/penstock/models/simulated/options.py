"""How a simulated model behaves while nothing is wrong with it."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypedDict

from penstock.base.settings import duration
from penstock.errors import Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    control: int | None = None  # a second port for commands that stays up; 0: a free one
    latency: str | float | timedelta = 0  # until the first token
    tokens_per_second: float | None = None  # None: as fast as it can
    tokens: int = 40  # of an answer in free text
    jitter: float = 0  # 0.2: latency and pace vary by a fifth, up and down
    seed: int = 0  # of the jitter, and of faults that come by chance
    slots: int = 1  # answers at once
    max_queue: int | None = None  # who may wait for a slot; None: everybody
    models: tuple[str, ...] | None = None  # None: any name will do
    num_ctx: int = 4_096  # tokens of a prompt, where the call does not say
    api_key: str | None = None  # None: no key is asked for
    log: Path | None = None  # one line of JSON for each call that ended

    def __post_init__(self) -> None:
        least: dict[str, float] = {"tokens": 1, "slots": 1, "num_ctx": 1, "max_queue": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                _refuse(name, value, f"{bound} or more")
        if self.tokens_per_second is not None and self.tokens_per_second <= 0:
            _refuse("tokens_per_second", self.tokens_per_second, "more than 0")
        if not 0 <= self.jitter <= 1:
            _refuse("jitter", self.jitter, "from 0 to 1")
        for name in ("port", "control"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 65_535:  # noqa: PLR2004
                _refuse(name, value, "from 0 (a free one) to 65535")
        _ = self.latency_seconds

    @property
    def latency_seconds(self) -> float:
        return duration(self.latency, field="latency").total_seconds()

    def knows(self, model: str) -> bool:
        """Whether there is such a model; as in Ollama, `llama3` is `llama3:latest`."""
        return self.models is None or tagged(model) in map(tagged, self.models)

    @property
    def listed(self) -> tuple[str, ...]:
        return ("llama3",) if self.models is None else self.models


class Written(TypedDict, total=False):
    """The names of `Options` as arguments of a function."""

    host: str
    port: int
    control: int | None
    latency: str | float | timedelta
    tokens_per_second: float | None
    tokens: int
    jitter: float
    seed: int
    slots: int
    max_queue: int | None
    models: tuple[str, ...] | None
    num_ctx: int
    api_key: str | None
    log: Path | None


def tagged(model: str) -> str:
    return model if ":" in model else f"{model}:latest"


def _refuse(name: str, value: object, allowed: str) -> None:
    raise Invalid(
        f"{name} is {value!r}; it may be {allowed}",
        code="invalid_option",
        field=name,
        allowed=allowed,
    )
