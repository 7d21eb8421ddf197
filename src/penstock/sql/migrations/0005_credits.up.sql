-- Credits: what accounts have, what jobs reserve and cost. Submits per hour. Requests in pieces.

-- What was taken for it when it was accepted; 0: it is free.
alter table penstock.job add column reserved bigint not null default 0;
-- How many units (images, pages) that pays for; null: one credit is one unit.
alter table penstock.job add column units_total bigint;
-- How many the present start has delivered, as it says.
alter table penstock.job add column units bigint;
-- Whether it was its account's first ever, and whether its priority was said by the caller, not by
-- the plan: then a change of plan does not change it.
alter table penstock.job add column first_job boolean not null default false;
alter table penstock.job add column priority_said boolean not null default false;
-- No row is priced yet, so there is nothing to validate.
alter table penstock.job add constraint priced_has_account
  check (reserved = 0 or (reserved > 0 and account_id <> 0)) not valid;

alter table penstock.finished add column reserved bigint not null default 0;
alter table penstock.finished add column first_job boolean not null default false;
alter table penstock.finished add column priority_said boolean not null default false;

alter table penstock.account add column first_job_at timestamptz;
-- Whoever is here already has had its first job, but for few.
update penstock.account set first_job_at = created_at where id <> 0;
-- Cached; so far from the end of the numbers that no sum can overflow. A grant stops at a
-- thousandth of it: what jobs give back must always find room.
alter table penstock.account add constraint balance_is_bounded
  check (balance <= 1000000000000000000) not valid;

-- {"fixed": 3}, {"field": "cost"}, {"per": "images", "each": 2},
-- {"per": "images", "by": "quality", "table": {"standard": 1, "high": 3}}; null: free.
alter table penstock.kind add column price jsonb;
-- A request for more than split_most of that field becomes several jobs.
alter table penstock.kind add column split_field text;
alter table penstock.kind add column split_most integer;

-- The books: every credit that came or went, and never a line changed. Never pruned.
create table penstock.ledger (
  -- Whoever writes a line holds this account; a foreign key would look for it once more.
  account_id bigint not null,
  id bigint generated always as identity,
  at timestamptz not null,
  kind text not null,
  amount bigint not null,
  balance_after bigint not null,
  job_id uuid,
  ref text,
  reason text,
  primary key (account_id, id),
  constraint kind_says_the_sign check (
    case kind when 'grant' then amount > 0 when 'refund' then amount > 0
      when 'reserve' then amount < 0 and job_id is not null
      when 'deduct' then amount < 0 and ref is not null
      else false end
  ),
  constraint balance_not_negative check (balance_after >= 0),
  constraint ref_is_short check (length(ref) between 1 and 200),
  constraint reason_is_short check (length(reason) between 1 and 500)
);
-- A grant, a deduction and its refund happen once for each reference.
create unique index ledger_ref_idx on penstock.ledger (account_id, ref, kind)
  where ref is not null;
-- Balances from before there were books.
insert into penstock.ledger (account_id, at, kind, amount, balance_after, reason)
select a.id, clock_timestamp(), 'grant', a.balance, a.balance, 'carried over'
from penstock.account a where a.balance > 0;

-- What became of a reservation: one line per priced job, written with its end.
create table penstock.resolution (
  job_id uuid primary key,
  account_id bigint not null,
  at timestamptz not null,
  reserved bigint not null,
  charged bigint not null,
  refunded bigint not null,
  constraint all_is_accounted_for check (charged + refunded = reserved),
  constraint nothing_is_negative check (least(charged, refunded) >= 0 and reserved > 0)
);
create index resolution_account_idx on penstock.resolution (account_id, at);

-- Submits of the last hour, of accounts whose plan counts them.
create table penstock.recent_submit (
  account_id bigint not null,
  at timestamptz not null,
  n integer not null,
  constraint n_is_positive check (n >= 1)
);
create index recent_submit_idx on penstock.recent_submit (account_id, at);
