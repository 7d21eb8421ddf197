"""The options of a plan: what each account that follows it may use."""

from penstock.engine.options.forms import Flag, Whole
from penstock.engine.options.option import Option

PLAN = (
    Option(
        name="priority",
        form=Whole(-1000, 1000),
        label="Priority",
        help="The priority of its accounts' jobs; lower is first.",
    ),
    Option(
        name="concurrency",
        form=Whole(1, 1_000_000),
        label="Jobs at once",
        unlimited=1_000_000,
        help="How many jobs of one account may run at once, over all queues.",
    ),
    Option(
        name="per_hour",
        form=Whole(1, 1_000_000_000),
        label="Submits per hour",
        unlimited=1_000_000_000,
        help="How many jobs one account may submit within any hour.",
        more="A request that is split counts as the jobs it becomes. More are refused with 429 and"
        " the time from which the next is accepted.",
    ),
    Option(
        name="weight",
        form=Whole(1, 1000),
        label="Weight",
        help="An account's share of a queue with order fair.",
        more="With 8 it gets eight attempts where 1 gets one.",
    ),
    Option(
        name="first_job",
        form=Whole(-1000, 1000),
        label="First job",
        help="Added to the priority of an account's first job ever, like -20.",
    ),
    Option(
        name="default",
        form=Flag(),
        default="the first plan declared",
        help="Accounts that were not seen before get this plan.",
    ),
)
