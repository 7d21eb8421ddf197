"""One worker for the jobs of the five systems and for `penstock dev`'s own kind.

python -m demo.worker LIFE     (`penstock dev` starts it, and restarts it when it dies)
"""

import sys
from pathlib import Path

import essays.jobs
import feedback.jobs
import marking.jobs
import penstock.cli.main
import scanner.jobs
import studio.jobs
from demo.life import follow
from demo.own import load_own
from penstock import Penstock
from penstock.engine.engine import Engine

OWN = Path(penstock.cli.__file__).with_name("demo.toml")


class Together(Penstock):
    """Several apps in one worker. Each one declares its queues and kinds in its own name."""

    def __init__(self, *apps: Penstock) -> None:
        super().__init__(name="demo")
        self._apps = apps
        for app in apps:
            self.queues |= app.queues
            self.kinds |= app.kinds
        self.changed()

    async def declare(self, engine: Engine) -> None:
        version = self._version
        for app in self._apps:
            await app.declare(engine)
        self._declared = version


app = Together(
    load_own(OWN),
    essays.jobs.app,
    feedback.jobs.app,
    marking.jobs.app,
    scanner.jobs.app,
    studio.jobs.app,
)

if __name__ == "__main__":
    follow(int(sys.argv[1]))
    sys.argv[1:] = ["worker", "demo.worker:app"]
    penstock.cli.main.main()
