"""The options of a kind of job."""

from penstock.engine.options.forms import Memory, Other, Seconds, Whole, Word
from penstock.engine.options.option import Option

_SOURCE = Other("parameter, constant or function")

KIND = (
    Option(
        name="queue",
        form=Other("queue or its name"),
        default="required",
        help="The queue in which its jobs wait.",
    ),
    Option(
        name="name",
        form=Other("name"),
        default="the function's name",
        help="The name of the kind on every surface.",
    ),
    Option(
        name="dedupe",
        form=_SOURCE,
        help="The dedupe key: while a job of this kind and account with the same key is live, a"
        " submit returns that one.",
    ),
    Option(
        name="topic",
        form=_SOURCE,
        help="What its jobs belong to, so that many of them are watched and listed together.",
    ),
    Option(
        name="account",
        form=_SOURCE,
        help="The account of its jobs: it pays, its limits count, and its keys may see them.",
    ),
    Option(
        name="priority_offset",
        form=Whole(-1000, 1000),
        default="0",
        help="Added to the priority of each of its jobs.",
    ),
    Option(
        name="timeout",
        form=Seconds(),
        default="the queue's",
        help="How long one attempt may take.",
    ),
    Option(
        name="attempts",
        form=Whole(1, 1000),
        default="the queue's",
        help="How often a job may fail.",
    ),
    Option(
        name="isolation",
        form=Word(("process",)),
        help="Run a plain `def` in its own process, which a time-out or a memory limit really"
        " ends.",
    ),
    Option(
        name="memory",
        form=Memory(),
        default="no limit",
        help="How much memory that process may use.",
    ),
    Option(
        name="price",
        form=Other("credits: number, table, function or trusted field"),
        default="no price",
        help="The price of a job: reserved with the submit, charged with success.",
        more='A table is `{"per": "images", "by": "quality", "standard": 1, "high": 3}`. A field of'
        ' the payload is a price only with `Field("cost", trusted=True)`, in TOML'
        ' `{ field = "cost", trusted = true }`; keys of accounts may not submit such a kind.',
    ),
    Option(
        name="split",
        form=Other('parameter and number, like `("images", 4)`'),
        help="A request for more becomes a batch of jobs of so many each.",
    ),
    Option(
        name="webhook",
        form=Other("address, or `$NAME` in TOML"),
        help="Your address to which the outcome of each job is sent, signed.",
    ),
)
