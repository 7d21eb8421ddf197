-- Credits. account.balance is the sum of the ledger, and never below zero.
--
-- Invariants. Code and tests cite these by number; penstock.check() looks for violations of each.
--   M1  balance = sum of the account's ledger amounts, and each line's balance_after is the sum up
--       to it. The transaction that writes a line holds the account's row.
--   M2  A job that was accepted for a price has one `reserve` of that price, written by the
--       transaction that accepted it.
--   M3  A live job with a price has no resolution. A finished one has exactly one, written by the
--       transaction that finished it: charged + refunded = reserved. What is refunded is a `refund`
--       of the job; a full charge needs no line, because the reserve has taken the credits already.
--   M4  A grant, a deduction and its refund happen once for each reference.
-- So, at any moment: granted - deducted = balance + reserved by live jobs + charged.

-- Writes ledger lines for amounts, in order; the caller holds the accounts' rows. Refuses all of
-- them if an account has too few credits.
create or replace function penstock._book(
  p_kind text, p_accounts bigint[], p_amounts bigint[], p_jobs uuid[], p_ref text default null,
  p_reason text default null
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := penstock.clock();
  v_short record;
  v_booked bigint;
  v_moved bigint[];
begin
  with line as materialized (
    select u.account_id, u.amount, u.job_id, u.n,
      sum(u.amount) over (partition by u.account_id order by u.n rows unbounded preceding) as upto,
      sum(u.amount) over (partition by u.account_id) as total
    from unnest(p_accounts, p_amounts, p_jobs) with ordinality u (account_id, amount, job_id, n)
  ),
  moved as (
    update penstock.account a set balance = a.balance + t.total
    from (select distinct l.account_id, l.total from line l) t
    where a.id = t.account_id
      and a.balance + t.total >= 0 -- guard: enough
    returning a.id, a.balance - t.total as before
  ),
  written as (
    insert into penstock.ledger (account_id, at, kind, amount, balance_after, job_id, ref, reason)
    select l.account_id, v_now, p_kind, l.amount, m.before + l.upto, l.job_id, p_ref, p_reason
    from line l join moved m on m.id = l.account_id
    order by l.n
    returning 1
  )
  select (select count(*) from written), (select array_agg(m.id) from moved m)
  into v_booked, v_moved;
  if v_booked <> cardinality(p_amounts) then
    select a.name, a.balance, s.required into v_short
    from (
      select u.account_id, -sum(u.amount) as required
      from unnest(p_accounts, p_amounts) u (account_id, amount) group by u.account_id
    ) s
    join penstock.account a on a.id = s.account_id
    where s.account_id <> all (coalesce(v_moved, '{}')) order by a.name limit 1;
    perform penstock._refuse(402, 'insufficient_credits',
      format('account %s has %s credits, and this needs %s', v_short.name, v_short.balance,
             v_short.required), 'account',
      jsonb_build_object('account', v_short.name, 'balance', v_short.balance,
                         'required', v_short.required));
  end if;
end
$$;

-- How much of a reservation is charged, by the status of the finished job and the units delivered.
create or replace function penstock._charged(
  p_status penstock.job_status, p_reserved bigint, p_total bigint, p_units bigint
) returns bigint
language sql immutable parallel safe
as $$
  select case
    when p_status not in ('succeeded', 'cancelled') then 0
    when p_units is null then case p_status when 'succeeded' then p_reserved else 0 end
    when p_total is null then greatest(0, least(p_reserved, p_units))
    else floor(p_reserved::numeric * greatest(0, least(p_units, p_total)) / p_total)::bigint end
$$;

-- Settles the reservations of jobs that the caller has finished in this transaction. It holds their
-- accounts.
create or replace function penstock._resolve(
  p_jobs uuid[], p_accounts bigint[], p_reserved bigint[], p_charged bigint[]
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_back record;
begin
  insert into penstock.resolution (job_id, account_id, at, reserved, charged, refunded)
  select u.job_id, u.account_id, penstock.clock(), u.reserved, u.charged, u.reserved - u.charged
  from unnest(p_jobs, p_accounts, p_reserved, p_charged)
    u (job_id, account_id, reserved, charged);
  select array_agg(u.account_id) as accounts, array_agg(u.reserved - u.charged) as amounts,
    array_agg(u.job_id) as jobs
  into v_back
  from unnest(p_jobs, p_accounts, p_reserved, p_charged) u (job_id, account_id, reserved, charged)
  where u.charged < u.reserved; -- guard: something is left
  if v_back.jobs is not null then
    perform penstock._book('refund', v_back.accounts, v_back.amounts, v_back.jobs);
  end if;
end
$$;

create or replace function penstock._refuse_odd_entry(p_amount bigint, p_reason text, p_ref text)
returns void
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select penstock._refuse(w.status, w.code, format('%s must be %s', w.field, w.rule), w.field)
  from (values
    ('amount', 422, 'invalid_amount', 'a whole number from 1 to 1000000000000',
     coalesce(p_amount, 0) not between 1 and 1000000000000),
    ('reason', 422, 'invalid_reason', 'a text of 1 to 500 characters',
     length(p_reason) not between 1 and 500),
    ('ref', 422, 'invalid_ref', 'a text of 1 to 200 characters',
     length(p_ref) not between 1 and 200)
  ) w (field, status, code, rule, is_wrong)
  where w.is_wrong
$$;

-- The account of that name, with its row locked until the caller commits.
create or replace function penstock._lock_account(p_account text) returns penstock.account
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_account penstock.account;
begin
  select * into v_account from penstock.account a
  where a.name = p_account for no key update; -- guard: held
  if not found then
    perform penstock._find_account(p_account);
  end if;
  return v_account;
end
$$;

-- Writes a line for a caller's reference once; the caller holds the account. If the reference has a
-- line already, returns that line.
create or replace function penstock._book_once(
  p_account penstock.account, p_kind text, p_amount bigint, p_reason text, p_ref text
) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_old penstock.ledger;
begin
  select * into v_old from penstock.ledger l
  where l.account_id = p_account.id and l.ref = p_ref and l.kind = p_kind;
  if v_old.amount <> p_amount then
    perform penstock._refuse(409, 'ref_reused',
      format('reference %s was used for another amount, %s', p_ref, abs(v_old.amount)), 'ref',
      jsonb_build_object('amount', v_old.amount),
      'Repeat it with the same amount, or use a new reference.');
  elsif v_old.id is null then
    if p_account.balance + p_amount > 1000000000000000 then
      perform penstock._refuse(422, 'invalid_amount',
        'amount must not bring the balance above 1000000000000000', 'amount');
    end if;
    perform penstock._book(p_kind, array[p_account.id], array[p_amount], array[null::uuid], p_ref,
      p_reason);
    p_account.balance := p_account.balance + p_amount;
  end if;
  return jsonb_build_object('account', p_account.name, 'kind', p_kind, 'amount', p_amount,
    'ref', p_ref, 'reason', case when v_old.id is null then p_reason else v_old.reason end,
    'balance', p_account.balance, 'replayed', v_old.id is not null);
end
$$;

-- Grants credits: bought, or a present. With a reference (a payment's id) only once, however often
-- it is repeated. Creates an unknown account, as a submit does.
create or replace function penstock.grant_credits(
  account text, amount bigint, reason text default null, ref text default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform penstock._refuse_odd_entry(amount, reason, ref);
  if account is null or length(account) not between 1 and 200 then
    perform penstock._refuse(422, 'invalid_account',
      'account must be a text of 1 to 200 characters', 'account');
  end if;
  perform penstock._ensure_accounts(array[account], s.accounts_strict) from penstock.setting s;
  return penstock._book_once(penstock._lock_account(account), 'grant', amount, reason, ref);
end
$$;

-- Deducts credits for something that is not a job, once for each reference.
create or replace function penstock.deduct_credits(
  account text, amount bigint, reason text default null, ref text default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform penstock._refuse_odd_entry(amount, reason, ref);
  if ref is null then
    perform penstock._refuse(422, 'invalid_ref',
      'ref is required: a repeated call takes the credits once for each reference', 'ref');
  end if;
  return penstock._book_once(penstock._lock_account(account), 'deduct', -amount, reason, ref);
end
$$;

-- Refunds what was deducted under that reference, all of it, once.
create or replace function penstock.refund_credits(
  account text, ref text, reason text default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_account penstock.account := penstock._lock_account(account);
  v_deducted bigint;
begin
  perform penstock._refuse_odd_entry(1, reason, ref);
  select -l.amount into v_deducted from penstock.ledger l
  where l.account_id = v_account.id and l.ref = refund_credits.ref
    and l.kind = 'deduct'; -- guard: was deducted
  if not found then
    perform penstock._refuse(404, 'unknown_ref',
      format('nothing was deducted from account %s under reference %s', account,
             coalesce(ref, 'null')), 'ref');
  end if;
  return penstock._book_once(v_account, 'refund', v_deducted, reason, ref);
end
$$;

-- The ledger lines of an account, newest first; p_before: the last id of the previous page.
create or replace function penstock.read_ledger(
  p_account text, p_limit integer default 100, p_before bigint default null
) returns setof jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_account bigint := penstock._find_account(p_account);
begin
  perform penstock._refuse_odd_limit(p_limit);
  return query
  select jsonb_build_object('id', l.id, 'at', penstock._rfc3339(l.at), 'kind', l.kind,
    'amount', l.amount, 'job', l.job_id, 'ref', l.ref, 'reason', l.reason,
    'balance_after', l.balance_after)
  from penstock.ledger l
  where l.account_id = v_account and (p_before is null or l.id < p_before)
  order by l.id desc limit p_limit;
end
$$;

-- Keeps the ledger append-only, also for the owner, who may do everything else.
create or replace function penstock._refuse_rewrite() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  perform penstock._refuse(403, 'append_only',
    format('%s.%s is only ever added to', tg_table_schema, tg_table_name), 'ledger',
    p_hint => 'Correct a wrong line with another one.');
  return null;
end
$$;

create or replace trigger ledger_is_append_only
before delete or update or truncate on penstock.ledger
for each statement execute function penstock._refuse_rewrite();

create or replace trigger resolution_is_append_only
before delete or update or truncate on penstock.resolution
for each statement execute function penstock._refuse_rewrite();
