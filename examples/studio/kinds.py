"""The products of the studio: kinds of pictures, prices, and prompts for the model."""

from dataclasses import dataclass
from typing import Literal

Quality = Literal["standard", "high"]

MOST_IMAGES = 8
# A job draws at most four images; a larger order gets two jobs, which may run at the same time.
IMAGES_PER_JOB = 4
JOB_SECONDS = 300
LONGEST_PROMPT = 500


@dataclass(frozen=True, slots=True)
class Sold:
    title: str
    about: str
    example: str
    order: str  # the prompt for the model
    prices: dict[Quality, int]  # credits for an image

    @property
    def price(self) -> dict[str, int | str]:
        """The price in the form that `@app.job` expects."""
        return {"per": "images", "by": "quality"} | {str(q): n for q, n in self.prices.items()}


_STILLS: dict[Quality, int] = {"standard": 1, "high": 3}
_MOVING: dict[Quality, int] = {"standard": 5, "high": 15}

SOLD = {
    "tryon": Sold(
        "Try-on",
        "clothes on a model",
        "a yellow raincoat",
        "A full-length photograph of a person who wears this: {prompt}",
        _STILLS,
    ),
    "product": Sold(
        "Product",
        "one thing, well lit",
        "a glass bottle of olive oil",
        "A product photograph in soft light, plain background: {prompt}",
        _STILLS,
    ),
    "freestyle": Sold(
        "Freestyle",
        "whatever you describe",
        "a lake between mountains at dawn",
        "{prompt}",
        _STILLS,
    ),
    "workflow": Sold(
        "Workflow",
        "a series in one style",
        "four seasons of the same street",
        "One picture of a series in the same style and colours: {prompt}",
        _STILLS,
    ),
    "video": Sold(
        "Video",
        "frames of a short film",
        "balloons that rise over hills",
        "A key frame of a short film: {prompt}",
        _MOVING,
    ),
}
