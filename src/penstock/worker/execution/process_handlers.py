"""Runs a handler in its own process: passes arguments, answers its questions, takes its reports."""

from typing import Any

from penstock.models.handlers.files import ProcessFiles
from penstock.models.handlers.job import Job
from penstock.worker.attempts.attempt import Attempt
from penstock.worker.execution.processes import Processes


async def run_in_process(processes: Processes, attempt: Attempt) -> Any:
    """Run the handler of this attempt in a process and return its result."""
    claimed, handler = attempt.claimed, attempt.handler
    assert handler.origin is not None  # noqa: S101  # declared so
    view = {
        "id": str(claimed.id),
        "kind": claimed.kind,
        "attempt": claimed.attempt,
        "account": claimed.account,
        "topic": claimed.topic,
        "payload": claimed.payload,
        "metadata": claimed.metadata or {},
        "key": str(claimed.id),
    }
    return await processes.call(
        handler.origin,
        claimed.payload,
        view,
        _Answers(attempt),
        memory_bytes=handler.memory_bytes,
    )


class _Answers:
    """Answers the questions and takes the reports of a handler in its own process."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._job = Job(attempt, blocking=False)
        self._files = ProcessFiles(attempt)

    async def __call__(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        attempt, progress = self._attempt, self._attempt.progress
        match method:
            case "read_step":
                await progress.read_steps(attempt)
                return [args[0] in attempt.steps, attempt.steps.get(args[0])]
            case "keep_step":
                name, text = args
                await self._job.keep(name, text)
                return None
            case "cancelled":
                return attempt.cancelled
            case "stage":
                self._job.say_stage(*args, **kwargs)
                return None
            case "open" | "read_piece" | "most_bytes" | "add_piece" | "attach":
                return await self._files(method, *args)
            case "emit" | "progress" | "charge" | "usage":
                return await getattr(self._job, method)(*args, **kwargs)
            case _:
                raise ValueError(method)
