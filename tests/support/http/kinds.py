"""Kinds of job that the tests of the API submit."""

from pydantic import BaseModel

from penstock import Fail
from support.http.site import Site


class Answer(BaseModel):
    text: str
    points: int = 1


def declare(site: Site) -> None:
    """A queue `line` and a kind for each case."""
    app = site.penstock
    app.plan("free", default=True)
    line = app.queue("line")

    @app.job(queue=line, topic="assignment")
    async def mark(
        answer: str,
        assignment: str = "a1",  # noqa: ARG001  # the topic
        points: int = 7,
    ) -> dict[str, int]:
        return {"points": points + len(answer)}

    @app.job(queue=line)
    async def refuse(why: str) -> None:
        raise Fail(why)

    @app.job(queue=line, price=2)
    async def priced(n: int = 1) -> int:
        return n

    @app.job(queue=line, dedupe="key")
    async def twin(key: str) -> str:
        return key

    @app.job(queue=line, topic=lambda payload: f"by-{payload['n']}")
    async def computed(n: int) -> int:
        return n

    @app.job(queue=line)
    async def nested(answers: list[Answer]) -> int:
        return len(answers)


async def declare_foreign(site: Site) -> None:
    """Declare kinds that the database knows, and the API's process does not."""
    await site.penstock.engine()
    queues = site.engine.queues
    await queues.declare("elsewhere", by="elsewhere")
    await queues.declare_kind("foreign", "elsewhere", by="elsewhere")
    await queues.declare_kind("coded", "elsewhere", by="elsewhere", computed=["topic"])
