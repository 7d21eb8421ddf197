-- The only insert into job. Three functions call it: _submit_jobs for any number of jobs,
-- _submit_plain for one plain job, accept_jobs for plain jobs of several callers.

-- Whether jobs of this kind in this queue are plain when the submit names no account, no dedupe key
-- and no price: they have no account to lock, no twin, no price to reserve, no pieces and no lane.
-- Inlined.
create or replace function penstock._is_plain_kind(p_kind penstock.kind) returns boolean
language sql immutable parallel safe
as $$
  select p_kind.account_field is null and p_kind.account_fixed is null
    and p_kind.dedupe_field is null and p_kind.dedupe_fixed is null
    and p_kind.price is null and p_kind.split_field is null
$$;

create or replace function penstock._is_plain(p_kind penstock.kind, p_queue penstock.queue)
returns boolean
language sql immutable parallel safe
as $$
  select penstock._is_plain_kind(p_kind)
    and p_queue.ordering <> 'fair' -- guard: no lane
$$;

-- Inserts jobs and returns a row for each. The caller has checked the values, has replaced account
-- and dedupe key by those in force, and holds the locks. Each array has one element per job; a null
-- array means null for all jobs. A job whose dedupe key has a live twin is not inserted.
--   p_seed             the n-th job gets the id _nth_id(p_seed, n)
--   p_kinds            the names of their kinds; may have duplicates
--   p_queue            insert only plain jobs of this queue; null: insert all. Checked here because
--                      a kind can change after the caller has read it
--   p_todo             whether to insert the job; null: all
--   p_owners           ids of the accounts
--   p_limited          whether the account has a limit
--   p_plan_priorities  the priority of the account's plan
--   p_first_job_offsets  what the plan adds to the priority of a first job; null: not a first job
create or replace function penstock._insert_jobs(
  p_seed uuid, p_now timestamptz, p_jobs penstock.new_job[], p_kinds text[], p_queue integer,
  p_todo boolean[] default null, p_owners bigint[] default null, p_limited boolean[] default null,
  p_plan_priorities integer[] default null, p_first_job_offsets integer[] default null,
  p_batch uuid default null, p_retry_of uuid default null
) returns table (
  id uuid, status penstock.job_status, queue_id integer, lane bigint, kind_id integer, rank bigint,
  account_id bigint, reserved bigint
)
language plpgsql set search_path = pg_catalog, pg_temp
  -- A new plan for each array would take longer than the rest of a submit.
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
  insert into penstock.job (id, rank, lane, account_id, queue_id, kind_id, status, priority,
    max_attempts, created_at, updated_at, run_at, expires_at, timeout, batch_id, retry_of,
    dedupe_key, topic, metadata, payload, reserved, units_total, first_job, priority_given)
  select penstock._nth_id(p_seed, x.ordinal),
    penstock._rank(k.ordering, t.priority, k.aging_step, t.run_at, x.ordinal),
    case when k.ordering = 'fair' or x.limited then coalesce(x.account_id, 0) else -1 end,
    coalesce(x.account_id, 0), k.queue_id, k.kind_id,
    case when t.run_at > p_now then 'scheduled'::penstock.job_status
         else 'queued'::penstock.job_status end,
    t.priority, coalesce(x.max_attempts, k.max_attempts), p_now, p_now, t.run_at,
    t.run_at + penstock._elapsed(x.expires), penstock._elapsed(x.timeout), p_batch, p_retry_of,
    x.dedupe_key, coalesce(x.topic, x.payload ->> k.topic_field, k.topic_fixed), x.metadata,
    x.payload,
    coalesce(x.price, penstock._price_of(k.price, x.payload), 0),
    case when k.price ? 'per' then penstock._count_of(x.payload, k.price ->> 'per') end,
    x.first_job_offset is not null, x.priority is not null
  from unnest(p_jobs, p_owners, p_limited, p_plan_priorities, p_first_job_offsets)
    x (ordinal, kind, payload, account, dedupe_key, topic, priority, run_at, delay, max_attempts,
       timeout, expires, metadata, price, webhook_url, account_id, limited, plan_priority,
       first_job_offset)
  -- A small set; the limit only informs the planner. As the hashed side of the join it leaves the
  -- jobs in order, and the sort below finds them sorted (the other way took a seventh of a bulk
  -- submit; 2026-11).
  join (
    select k.name, k.id as kind_id, k.queue_id, k.priority_offset, k.topic_field, k.topic_fixed,
      coalesce(k.max_attempts, q.max_attempts) as max_attempts, q.ordering, q.aging_step, k.price
    from penstock.kind k join penstock.queue q on q.id = k.queue_id
    where k.name = any (p_kinds)
      and (p_queue is null or q.id = p_queue and penstock._is_plain(k, q)) -- guard: plain
    limit cardinality(p_kinds)
  ) k on k.name = x.kind
  cross join lateral (
    select coalesce(x.priority, greatest(-1000, least(1000, coalesce(x.plan_priority, 0)
        + k.priority_offset + coalesce(x.first_job_offset, 0)))) as priority,
      greatest(p_now, coalesce(x.run_at, p_now + penstock._elapsed(x.delay), p_now)) as run_at
  ) t
  where p_todo is null or p_todo[x.ordinal] -- guard: the rest only
  -- Two batches with the same keys insert them in the same order.
  order by k.kind_id, coalesce(x.account_id, 0), x.dedupe_key, x.ordinal
  on conflict (kind_id, account_id, dedupe_key) where dedupe_key is not null do nothing
  returning job.id, job.status, job.queue_id, job.lane, job.kind_id, job.rank, job.account_id,
    job.reserved;
end
$$;
