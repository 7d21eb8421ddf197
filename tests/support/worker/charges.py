"""An app whose handlers report what they delivered. In a module: another process imports it."""

from penstock import Constant, Job, Penstock, Retries

PRICE: dict[str, int | str] = {"per": "images", "each": 2}

app = Penstock(name="charges")
app.queue("q", retry=Retries(attempts=2, backoff="constant", delay="0s"))


@app.job(queue="q", name="async", account=Constant("u1"), price=PRICE)
async def deliver(images: int, good: int, job: Job) -> int:
    await job.charge(units=1)
    await job.charge(units=good)
    return images


@app.job(queue="q", name="thread", account=Constant("u1"), price=PRICE)
def deliver_in_thread(images: int, good: int, job: Job) -> int:
    job.charge(units=1)
    job.charge(units=good)
    return images


@app.job(queue="q", name="process", account=Constant("u1"), price=PRICE, isolation="process")
def deliver_in_process(images: int, good: int, job: Job) -> int:
    job.charge(units=1)
    job.charge(units=good)
    return images
