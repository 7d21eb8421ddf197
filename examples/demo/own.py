"""The declarations of `penstock dev`'s own kind, beside those of the five systems."""

from pathlib import Path

from penstock import Penstock
from penstock.client.config.toml import load


def load_own(path: Path) -> Penstock:
    """Load the file and add a default plan: the studio's plans would limit all accounts otherwise.

    The plan is not in the file, because that also runs on databases that have their own plans.
    """
    app = load(path)
    app.plan("everybody", default=True)
    return app
