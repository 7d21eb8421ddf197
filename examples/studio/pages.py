"""The pages, from the files in pages/. All inserted values are escaped."""

from html import escape
from pathlib import Path
from string import Template

from studio.customers import CUSTOMERS
from studio.errors import in_credits
from studio.kinds import IMAGES_PER_JOB, LONGEST_PROMPT, MOST_IMAGES, SOLD

FOLDER = Path(__file__).with_name("pages")


def studio(account: str, *, operator: bool) -> str:
    customer = CUSTOMERS[account]
    kinds = "\n".join(
        _fill(
            "kind.html",
            key=escape(key),
            title=escape(sold.title),
            about=escape(sold.about),
            example=escape(sold.example),
            standard=str(sold.prices["standard"]),
            high=str(sold.prices["high"]),
            checked="checked" if key == "freestyle" else "",
        )
        for key, sold in SOLD.items()
    )
    return _fill(
        "studio.html",
        account=escape(account),
        customer=escape(customer.title),
        kinds=kinds,
        longest=str(LONGEST_PROMPT),
        most=str(MOST_IMAGES),
        per_job=str(IMAGES_PER_JOB),
        operator=_fill("operator.html", customer=escape(customer.title)) if operator else "",
    )


def sign_in(wrong: str = "") -> str:
    buttons = "\n".join(
        f'<button name="customer" value="{escape(account)}" class="choice">'
        f"<strong>{escape(customer.title)} ({escape(customer.plan)})</strong>"
        f"<span>began with {in_credits(customer.credits)}</span></button>"
        for account, customer in CUSTOMERS.items()
    )
    return _fill("sign_in.html", buttons=buttons, wrong=escape(wrong))


def _fill(file: str, **values: str) -> str:
    return Template((FOLDER / file).read_text(encoding="utf-8")).substitute(values)
