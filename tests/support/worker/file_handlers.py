"""Handlers that read and make files: in the loop, in a thread, and in another process."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from penstock import Job, Penstock

app = Penstock(name="files")
files = app.queue("files")


@app.job(queue=files)
async def copy(file: dict[str, Any], job: Job) -> dict[str, Any]:
    opened = await job.open(file)

    async def content() -> AsyncIterator[bytes]:
        async for chunk in opened.chunks():
            yield chunk

    return {"made": await job.attach(content(), opened.content_type), "size": opened.size}


@app.job(queue=files)
def copy_in_thread(file: dict[str, Any], job: Job) -> dict[str, Any]:
    opened = job.open(file)

    def content() -> Iterator[bytes]:
        yield from opened.chunks()

    return {"made": job.attach(content(), opened.content_type), "size": opened.size}


@app.job(queue=files, isolation="process")
def copy_in_process(file: dict[str, Any], job: Job) -> dict[str, Any]:
    opened = job.open(file)
    path = Path(f"copy-{job.id}")
    path.write_bytes(opened.read())
    try:
        return {"made": job.attach(path, opened.content_type), "size": opened.size}
    finally:
        path.unlink()


@app.job(queue=files)
async def peek(wanted: str, job: Job) -> int:
    """Requests a file that its payload does not refer to."""
    return len(await (await job.open(wanted)).read())


@app.job(queue=files)
async def make(what: str, job: Job) -> Any:
    match what:
        case "text":
            return await job.attach("text", "text/plain")
        case "texts":
            return await job.attach(["text"], "text/plain")
        case "type":
            return await job.attach(b"x", "picture")
        case "nothing":
            return await job.attach(b"", "text/plain")
        case "endless":
            return await job.attach(iter(lambda: bytes(1_000), b""), "text/plain")
        case _:
            return await job.open(what)
