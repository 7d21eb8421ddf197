"""The status of a submission: one of the document's four statuses, and a sentence for people."""

from typing import Any

from essays.tasks import TASKS

STAGES = {
    "reading": "The model is reading your essay.",
    "scoring": "The model is scoring your essay.",
}
AWAY = (
    "The AI service does not answer at the moment. "
    "Your essay is safe, and it goes on by itself when the service is back."
)


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """The answer of /api/essay-status for a row of `store.read`."""
    job = row["job"] or {}
    status, message = _state(row["status"], job)
    error = row["error_message"]
    if status == "failed" and error is None:
        # It finished without a worker, and our row is not updated yet.
        error = why(job["status"], job["error"])
    return {
        "id": row["id"],
        "status": status,
        "analysis_result": row["analysis_result"],
        "error_message": error,
        "submitted_at": row["submitted_at"].isoformat(),
        "processed_at": row["processed_at"].isoformat() if row["processed_at"] else None,
        "word_count": row["word_count"],
        "message": message,
        "next_try_at": job.get("run_at") if job.get("status") == "scheduled" else None,
        "task": row["task"],
    }


def opened(row: dict[str, Any]) -> dict[str, Any]:
    """The same with all that was sent in: the question, the essay, and where its image is."""
    return {
        **shown(row),
        "question": TASKS[row["task"]].prompt,
        "essay": row["essay"],
        "image": f"/api/essay-image?id={row['id']}" if row["image_type"] else None,
    }


def why(status: str, error: dict[str, Any] | None) -> str:
    """Return a sentence for an outcome without a result, never the message of an exception."""
    if status == "cancelled":
        return "The analysis was stopped."
    return _words(error) or "The analysis could not be finished."


def _words(error: dict[str, Any] | None) -> str | None:
    """Return the message of an error that is public."""
    return error["message"] if error and error.get("public") else None


def _state(status: str, job: dict[str, Any]) -> tuple[str, str]:
    match status, job.get("status"):
        case "done", _:
            return "done", "Your essay has been analyzed."
        case "failed", _:
            return "failed", "Your essay could not be analyzed."
        case _, "failed" | "cancelled":
            return "failed", "Your essay could not be analyzed."
        case _, "scheduled" | "queued" if _is_unavailable(job):
            return "pending", AWAY
        case _, "scheduled":
            why = _words(job.get("error")) or "It did not work the first time."
            return "pending", f"Waiting to try again: {why}"
        case _, "queued":
            return "pending", "Waiting for its turn."
        case _:
            return "processing", STAGES.get(job.get("stage") or "", "Processing your essay.")


def _is_unavailable(job: dict[str, Any]) -> bool:
    """Whether it waits for an unavailable model."""
    return job.get("waiting_for") == "circuit_open" or (
        (job.get("error") or {}).get("class") == "unavailable"
    )
