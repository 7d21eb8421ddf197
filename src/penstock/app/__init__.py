"""The app: what is declared, and how its jobs are submitted. `from penstock import Penstock`."""

from penstock.app.batch import Batch, BatchTicket
from penstock.app.kind import Kind
from penstock.app.penstock import Penstock
from penstock.app.plan import Plan
from penstock.app.prices import Field
from penstock.app.queue import Queue, Retries
from penstock.app.sources import Constant
from penstock.app.submission import Submission
from penstock.app.ticket import Ticket

__all__ = [
    "Batch",
    "BatchTicket",
    "Constant",
    "Field",
    "Kind",
    "Penstock",
    "Plan",
    "Queue",
    "Retries",
    "Submission",
    "Ticket",
]
