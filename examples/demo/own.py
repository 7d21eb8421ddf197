"""The kind that `penstock dev` has itself, as it is declared where the five systems are."""

from pathlib import Path

from penstock import Penstock
from penstock.client.config.toml import load


def load_own(path: Path) -> Penstock:
    """For accounts that nobody gave a plan: those that the studio sells would limit them all.

    Not in the file: it is also run on databases of other people, who have plans of their own.
    """
    app = load(path)
    app.plan("everybody", default=True)
    return app
