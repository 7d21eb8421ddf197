"""The customers: a few accounts with different plans and balances, and no passwords."""

import os
from contextlib import suppress
from dataclasses import dataclass

from penstock import Conflict, Penstock

PLANS = ("free", "starter", "growth", "pro")
# The initial credits of each plan.
WELCOME_CREDITS = {"free": 10, "starter": 50, "growth": 100, "pro": 300}
WELCOME = "welcome"


@dataclass(frozen=True, slots=True)
class Customer:
    title: str
    plan: str

    @property
    def credits(self) -> int:
        return WELCOME_CREDITS[self.plan]


CUSTOMERS = {
    f"customer-{number}": Customer(f"customer {number}", PLANS[(number - 1) % len(PLANS)])
    for number in range(1, int(os.environ.get("STUDIO_CUSTOMERS") or 5) + 1)
}


async def seed(app: Penstock) -> None:
    """Create missing accounts with their initial credits; existing ones are not changed."""
    for account, customer in CUSTOMERS.items():
        with suppress(Conflict):
            await app.accounts.create(account, plan=customer.plan)
        await app.accounts.grant(account, customer.credits, reason="a present", ref=WELCOME)
