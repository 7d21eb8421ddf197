"""Checks credits in a storm, one snapshot after the other, against all earlier snapshots."""

from dataclasses import dataclass

import asyncpg

# Every how many snapshots each job is checked, and not only the sums.
THOROUGH = 5


@dataclass
class Memory:
    """The state of an account's ledger and resolutions, up to the newest line."""

    newest: int
    print: tuple[int, int, int]
    resolved: int
    charged: int


class Auditor:
    def __init__(self) -> None:
        self.snapshots = 0
        self.lowest: dict[str, int] = {}
        self._seen: dict[int, Memory] = {}

    async def check(self, conn: asyncpg.Connection, *, thorough: bool = False) -> None:
        """Check one snapshot: nothing is negative, all sums agree, and no line is lost."""
        thorough = thorough or self.snapshots % THOROUGH == 0
        async with conn.transaction(isolation="repeatable_read", readonly=True):
            sums = await conn.fetch(_SUMS)
            prints = await conn.fetch(
                _PRINTS, list(self._seen), [memory.newest for memory in self._seen.values()]
            )
            odd = await conn.fetch(_ODD_JOBS) if thorough else []
            broken = await conn.fetch("select * from penstock.check()") if thorough else []
        self._remembered(prints)
        for row in sums:
            self._adds_up(row)
        assert not odd, f"jobs and their resolutions: {odd}"
        assert not broken, f"invariants are broken: {broken}"
        self.snapshots += 1

    def _remembered(self, prints: list[asyncpg.Record]) -> None:
        """What was seen once stays, also after the server was killed: it was on the disk."""
        found = {row["account_id"]: (row["n"], row["total"], row["upto"]) for row in prints}
        for account, memory in self._seen.items():
            assert found.get(account) == memory.print, (
                f"the ledger of account {account} was {memory} and is {found.get(account)}"
            )

    def _adds_up(self, row: asyncpg.Record) -> None:
        what = f"account {row['name']}: {dict(row)}"
        assert row["balance"] >= 0, what
        assert row["lowest"] >= 0, what
        assert row["balance"] == row["total"], what
        assert row["given"] == row["balance"] + row["live"] + row["charged"], what
        # The same, in its parts.
        assert row["reserved"] == row["live"] + row["resolved"], what
        assert row["refunded"] == row["refunds"], what
        assert row["charged"] + row["refunds"] == row["resolved"], what
        before = self._seen.get(row["id"])
        if before:
            assert row["resolutions"] >= before.resolved, what
            assert row["charged"] >= before.charged, what
        self._seen[row["id"]] = Memory(
            row["newest"],
            (row["n"], row["total"], row["upto"]),
            row["resolutions"],
            row["charged"],
        )
        self.lowest[row["name"]] = min(self.lowest.get(row["name"], row["lowest"]), row["lowest"])


# Per account, from the tables alone. `given`: granted, less deductions for other things than jobs.
_SUMS = """
select a.id, a.name, a.balance, l.n, l.total, l.upto, l.newest, l.lowest, l.given, l.reserved,
  l.refunded, coalesce(j.reserved, 0)::bigint as live, coalesce(r.n, 0) as resolutions,
  coalesce(r.reserved, 0)::bigint as resolved, coalesce(r.charged, 0)::bigint as charged,
  coalesce(r.refunded, 0)::bigint as refunds
from penstock.account a
join (
  select account_id, count(*) as n, max(id) as newest, sum(amount)::bigint as total,
    sum(balance_after)::bigint as upto, min(balance_after) as lowest,
    coalesce(sum(amount) filter (where job_id is null), 0)::bigint as given,
    coalesce(-sum(amount) filter (where kind = 'reserve'), 0)::bigint as reserved,
    coalesce(sum(amount) filter (where kind = 'refund' and job_id is not null), 0)::bigint
      as refunded
  from penstock.ledger group by account_id
) l on l.account_id = a.id
left join (
  select account_id, sum(reserved) as reserved from penstock.job group by account_id
) j on j.account_id = a.id
left join (
  select account_id, count(*) as n, sum(reserved) as reserved, sum(charged) as charged,
    sum(refunded) as refunded
  from penstock.resolution group by account_id
) r on r.account_id = a.id
"""
_PRINTS = """
select l.account_id, count(*) as n, sum(l.amount)::bigint as total,
  sum(l.balance_after)::bigint as upto
from penstock.ledger l join unnest($1::bigint[], $2::bigint[]) s (account_id, newest)
  on l.account_id = s.account_id and l.id <= s.newest
group by l.account_id
"""
# Resolved twice, or incompletely; live and resolved; finished and not; reserved or refunded twice.
_ODD_JOBS = """
select 'resolutions' as what, job_id, count(*) as n from penstock.resolution
group by job_id having count(*) <> 1 or sum(charged + refunded - reserved) <> 0
union all
select 'lives', j.id, r.charged from penstock.job j join penstock.resolution r on r.job_id = j.id
union all
select 'ended', f.id, f.reserved from penstock.finished f
left join penstock.resolution r on r.job_id = f.id and r.reserved = f.reserved
where f.reserved > 0 and r.job_id is null
union all
select kind, job_id, count(*) from penstock.ledger
where job_id is not null group by kind, job_id having count(*) <> 1
"""
