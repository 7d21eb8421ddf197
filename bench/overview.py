"""How long does the dashboard's first page take with a million live and a million finished jobs?

    python bench/overview.py [--smoke]

There are 40 queues, some of them with limits, rates or a fair order, and 10,000 accounts. Half of
the accounts may run two jobs at once, so their jobs wait in lanes. The page is requested like by a
browser, over HTTP, one request after the other. For comparison: an exact count of all live jobs by
queue and status, which the page would need if it counted.
"""

import re
import time

import asyncpg
import httpx
import uvloop

import bare
from http_process import SECRET, http_process
from penstock.db.embedded.database import Embedded
from report import Found, Line, Rounds, percentile
from server import connection, fresh, record_part, server, smoke

QUICK = smoke()
LIVE = 40_000 if QUICK else 1_000_000
FINISHED = 40_000 if QUICK else 1_000_000
ACCOUNTS = 500 if QUICK else 10_000
QUEUES = 40
BULK = 10_000 if QUICK else 50_000
WARM, SAMPLES = 5, 50
DAYS = 30
_TOKEN = re.compile(r'name="form_token" value="([^"]+)"')

_SUBMIT = """
select count(*) from penstock.submit_many(
  array(select format('q%s', g % $3) from generate_series($1::integer, $2::integer - 1) g),
  array_fill('{"text": "as long as a short question to a model"}'::jsonb, array[$2 - $1]),
  p_accounts => array(
    select format('a%s', (g + g::bigint / $3 * 7919) % $4)
    from generate_series($1::integer, $2::integer - 1) g),
  -- One in ten for later.
  p_delays => array(select case when g / $3 % 10 = 9 then interval '1 day' end
    from generate_series($1::integer, $2::integer - 1) g))
"""
_FINISHED = """
insert into penstock.finished (id, class, status, account_id, queue_id, kind_id, priority, attempt,
  failures, deferrals, crashes, max_attempts, version, created_at, run_at, started_at, finished_at,
  finished_by_attempt, error, payload)
select penstock.new_id(t.at), case when t.n % 50 = 0 then q.failed_class else q.succeeded_class end,
  (case when t.n % 50 = 0 then 'failed' else 'succeeded' end)::penstock.job_status,
  0, q.id, k.id, 0, 1, 0, 0, 0, 3, 3, t.at, t.at, t.at,
  t.at + make_interval(secs => t.n % 97 / 3.0), true,
  case when t.n % 50 = 0 then jsonb_build_object('class',
    (array['timeout', 'unavailable', 'bug', 'bad_output'])[1 + t.n / 50 % 4], 'message', 'm') end,
  '{"text": "as long as a short question to a model"}'
from (
  select n, clock_timestamp() - make_interval(secs => n * 86300.0 / $2 + 40) as at
  from generate_series($2::integer, 1, -1) n
) t
join penstock.queue q on q.name = format('q%s', t.n % $1) join penstock.kind k on k.queue_id = q.id
"""
# The hourly figures of the month before, as upkeep writes them.
_HOURS = """
insert into penstock.hourly_bucket
  (hour, queue_id, kind_id, outcome, class, count, total_ms, histogram)
select h.hour, k.queue_id, k.id, o.outcome, o.class, 50, 500000,
  '{0,0,1,5,30,50,50,50,50,50,50,50}'
from generate_series(date_trunc('hour', clock_timestamp(), 'UTC') - make_interval(days => $1),
  date_trunc('hour', clock_timestamp(), 'UTC') - interval '25 hours', '1 hour') h (hour),
  penstock.kind k, (values ('succeeded', ''), ('failed', 'timeout'), ('retried', 'unavailable'))
  o (outcome, class)
"""
_EXACT = "select queue_id, status, count(*) from penstock.job group by queue_id, status"


async def declare(conn: asyncpg.Connection) -> None:
    await conn.execute("""select penstock.declare_plan('small', '{"concurrency": 2}')""")
    await conn.execute("""select penstock.declare_plan('free', '{"default": true}')""")
    await conn.execute(
        "select count(penstock.create_account(format('a%s', n),"
        " case when n % 2 = 0 then 'small' else 'free' end)) from generate_series(0, $1 - 1) n",
        ACCOUNTS,
    )
    for number in range(QUEUES):
        options: dict[str, object] = {}
        if number % 4 == 1:
            options = {"concurrency": 50}
        elif number % 4 == 2:
            options = {"rate": "100/m"}
        elif number % 8 == 3:
            options = {"order": "fair"}
        await conn.execute("select penstock.declare_queue($1, $2)", f"q{number}", options)
        await conn.execute("select penstock.declare_kind($1, $1)", f"q{number}")


async def fill(conn: asyncpg.Connection) -> None:
    """Create live, running and finished jobs, and the hourly figures of upkeep."""
    await declare(conn)
    for begin in range(0, LIVE, BULK):
        await conn.execute(_SUBMIT, begin, min(begin + BULK, LIVE), QUEUES, ACCOUNTS)
    worker = await conn.fetchval("select penstock.register_worker('bench', '1 day')")
    for number in range(QUEUES):
        await conn.execute(
            "select count(*) from penstock.claim_jobs($1, $2, 50)", worker, f"q{number}"
        )
    await conn.execute(
        "update penstock.rollup set counted_until = clock_timestamp() - interval '25 hours'"
    )
    await conn.execute(_FINISHED, QUEUES, FINISHED)
    await conn.execute(_HOURS, DAYS)
    for table in ("penstock.job", "penstock.finished", "penstock.lane", "penstock.hourly_bucket"):
        await bare.settle(conn, table)
    while await conn.fetchval("select penstock.roll_up()"):
        pass


class Operator:
    """A signed-in operator who requests the page again and again."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def sign_in(self, secret: str) -> None:
        form = await self._http.get("/login")
        found = _TOKEN.search(form.text)
        assert found, form.text
        answer = await self._http.post("/login", data={"form_token": found[1], "key": secret})
        assert answer.status_code == 303, answer.text

    async def request_page(self, times: int, path: str = "/") -> list[float]:
        """Request the page; return the time of each request in milliseconds."""
        took = []
        for _ in range(times):
            began = time.perf_counter()
            answer = await self._http.get(path)
            took.append((time.perf_counter() - began) * 1e3)
            assert answer.status_code == 200, answer.text
        return took


async def times_of(conn: asyncpg.Connection, sql: str) -> list[float]:
    took = []
    for _ in range(5):
        began = time.perf_counter()
        await conn.execute(sql)
        took.append((time.perf_counter() - began) * 1e3)
    return took


async def overview(running: Embedded) -> Found:
    async with fresh(running) as dsn:
        conn = await connection(dsn)
        await fill(conn)
        rounds: Rounds = {"exact count": await times_of(conn, _EXACT)}
        async with (
            http_process(dsn, "api") as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
        ):
            operator = Operator(http)
            await operator.sign_in(SECRET)
            await operator.request_page(WARM)
            rounds["a day"] = await operator.request_page(SAMPLES)
            for name, hours in (("a week", 168), ("a month", 720)):
                rounds[name] = await operator.request_page(SAMPLES // 5, f"/?hours={hours}")
        rounds["read_overview"] = await times_of(conn, "select penstock.read_overview()")
        await conn.close()
    exact, inside = (percentile(rounds[name], 50) for name in ("exact count", "read_overview"))
    what = f"the overview with {LIVE:,} live and {FINISHED:,} finished jobs,"
    lines = [
        Line(f"{what} p50", percentile(rounds["a day"], 50), "ms", exact, "exact count of live"),
        Line(
            f"{what} p95",
            percentile(rounds["a day"], 95),
            "ms",
            inside,
            "of it in SQL, p50",
            200,
            "ours",
            least=False,
        ),
        *(
            Line(f"  {name}, p50", percentile(rounds[name], 50), "ms", inside, "a day in SQL, p50")
            for name in ("a week", "a month")
        ),
    ]
    return Found(lines, rounds)


async def main() -> None:
    async with server() as running:
        found = await overview(running)
    for line in found.lines:
        print(line)
    if not QUICK:
        record_part("overview", "overview", found.kept())


if __name__ == "__main__":
    uvloop.run(main())
