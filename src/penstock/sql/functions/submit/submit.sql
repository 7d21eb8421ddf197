-- Accepts any number of jobs in the caller's transaction.
--
-- The order of the steps is the lock order of lifecycle.sql: check everything; create unknown
-- accounts; lock the accounts that have a limit or pay; insert the jobs, those with a dedupe key in
-- the order of their keys; update the lanes; reserve the prices and count the jobs. Nothing here
-- writes a row that a whole queue shares.

-- Creates the accounts that do not exist, with the default plan; if accounts are strict, refuses.
create or replace function penstock._ensure_accounts(p_names text[], p_strict boolean)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_new text[];
  v_plan penstock.plan;
begin
  select array_agg(n.name order by n.name) into v_new
  from (select distinct u.name from unnest(p_names) u (name)) n
  left join penstock.account a on a.name = n.name
  where n.name is not null and a.id is null;
  if v_new is null then
    return;
  end if;
  if p_strict then
    perform penstock._refuse(404, 'unknown_account', format('there is no account %s', v_new[1]),
      'account', jsonb_build_object('account', v_new[1]),
      'Accounts are strict here: create it first.');
  end if;
  v_plan := penstock._lock_plan(null);
  insert into penstock.account (name, plan, concurrency, weight, created_at, limited_at)
  select n.name, v_plan.name, v_plan.concurrency, coalesce(v_plan.weight, 1), penstock.clock(),
    penstock.clock()
  from unnest(v_new) n (name)
  on conflict (name) do nothing;
end
$$;

-- What plans add to the priority of an account's first job, by ordinal of the jobs: for the first
-- job of each account, or for all pieces of one request. Hash joins, because arrays are joined.
create or replace function penstock._first_job_offsets(
  p_names text[], p_fresh bigint[], p_one_request boolean
) returns integer[]
language sql stable set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off
as $$
  select array_agg(case when f.id is not null and (p_one_request or n.nth = 1)
      then coalesce(p.first_job, 0) end order by n.ordinal)
  from (
    select u.name, u.ordinal, row_number() over (partition by u.name order by u.ordinal) as nth
    from unnest(p_names) with ordinality u (name, ordinal)
  ) n
  left join penstock.account a on a.name = n.name
  left join unnest(p_fresh) f (id) on f.id = a.id
  left join penstock.plan p on p.name = a.plan
$$;

-- One new_job per element of parallel arrays; a null array means null for all jobs.
create or replace function penstock._new_jobs(
  p_kinds text[], p_payloads jsonb[], p_accounts text[], p_dedupe_keys text[], p_topics text[],
  p_priorities integer[], p_run_ats timestamptz[], p_delays interval[], p_max_attempts integer[],
  p_timeouts interval[], p_expires interval[], p_metadata jsonb[], p_prices bigint[],
  p_webhook_urls text[]
) returns penstock.new_job[]
language sql immutable parallel safe
as $$
  select array(
    select (x.ordinal, x.kind, x.payload, x.account, x.dedupe_key, x.topic, x.priority, x.run_at,
      x.delay, x.max_attempts, x.timeout, x.expires, x.metadata, x.price,
      x.webhook_url)::penstock.new_job
    from unnest(p_kinds, p_payloads, p_accounts, p_dedupe_keys, p_topics, p_priorities, p_run_ats,
      p_delays, p_max_attempts, p_timeouts, p_expires, p_metadata, p_prices, p_webhook_urls)
      with ordinality x (kind, payload, account, dedupe_key, topic, priority, run_at, delay,
        max_attempts, timeout, expires, metadata, price, webhook_url, ordinal)
    order by x.ordinal)
$$;

-- As _submit_jobs, for parallel arrays.
create or replace function penstock.submit_many(
  p_kinds text[], p_payloads jsonb[], p_accounts text[] default null,
  p_dedupe_keys text[] default null, p_topics text[] default null,
  p_priorities integer[] default null, p_run_ats timestamptz[] default null,
  p_delays interval[] default null, p_max_attempts integer[] default null,
  p_timeouts interval[] default null, p_expires interval[] default null,
  p_metadata jsonb[] default null, p_prices bigint[] default null,
  p_batched boolean default false, p_one_request boolean default false,
  p_retry_of uuid default null, p_is_new boolean default true,
  p_webhook_urls text[] default null, p_own boolean default false
) returns table (
  ordinal bigint, id uuid, status penstock.job_status, deduplicated boolean, balance bigint,
  batch uuid
)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select s.* from penstock._submit_jobs(
    penstock._new_jobs(p_kinds, p_payloads, p_accounts, p_dedupe_keys, p_topics, p_priorities,
      p_run_ats, p_delays, p_max_attempts, p_timeouts, p_expires, p_metadata, p_prices,
      p_webhook_urls),
    p_batched, p_one_request, p_own, p_retry_of, p_is_new) s
$$;

-- Submits any number of jobs, all or none. Returns a row per job, in order: its id, or that of the
-- live twin with deduplicated = true, and the balance of its account.
--   p_batched      make a batch of the accepted jobs
--   p_one_request  the jobs are pieces of one request: all get the plan's offset for a first job
--   p_own          the caller has an account key
--   p_is_new       false: these jobs were counted before
create or replace function penstock._submit_jobs(
  p_jobs penstock.new_job[], p_batched boolean, p_one_request boolean default false,
  p_own boolean default false, p_retry_of uuid default null, p_is_new boolean default true
) returns table (
  ordinal bigint, id uuid, status penstock.job_status, deduplicated boolean, balance bigint,
  batch uuid
)
language plpgsql set search_path = pg_catalog, pg_temp
  -- Sorting 50,000 jobs by key stays in memory; a new plan for each array took longer than the
  -- rest of a single submit (2026-11). Nothing below joins one array to another.
  set work_mem = '64MB' set plan_cache_mode = force_generic_plan set enable_seqscan = off
  set jit = off
as $$
#variable_conflict use_column
declare
  v_setting penstock.setting;
  v_now timestamptz := penstock.clock();
  v_seed uuid := penstock.new_id(v_now);
  v_names text[];
  v_named boolean;
  v_webhooks boolean;
  v_keyed boolean;
  v_laned boolean;
  v_priced boolean;
  v_fresh bigint[]; -- accounts whose first job is among these
  v_first_job_offsets integer[]; -- by ordinal
  v_owners bigint[]; -- one element per accepted job of an account
  v_batch uuid := case when p_batched then penstock.new_id(v_now) end;
  v_accepted bigint := 0;
  v_kinds text[];
  v_locked bigint[];
  v_strays bigint[];
  v_todo boolean[]; -- by ordinal: neither inserted nor matched with a twin
  v_left integer := cardinality(p_jobs);
  v_owner record; -- by ordinal
  v_new record;
  v_n bigint;
begin
  select * into v_setting from penstock.setting;
  select array_agg(g.kind), bool_or(g.named), bool_or(g.priced), bool_or(g.webhooks)
  into v_kinds, v_named, v_priced, v_webhooks
  from (
    select j.kind, bool_or(coalesce(j.account, j.dedupe_key) is not null) as named,
      bool_or(j.price is not null) as priced, bool_or(j.webhook_url is not null) as webhooks
    from unnest(p_jobs) j group by j.kind
  ) g;
  if v_left = 0 then
    perform penstock._refuse(422, 'invalid_job', 'each job needs a kind and a payload', 'jobs');
  end if;
  if v_left > v_setting.batch_max_jobs then
    perform penstock._refuse(413, 'batch_too_large',
      format('a batch may hold at most %s jobs', v_setting.batch_max_jobs), 'jobs');
  end if;
  perform penstock._refuse_job_faults(p_jobs, v_now, p_own);

  -- The ordering of a queue does not change during a submit: rank and lane depend on it.
  perform penstock._share_queue_lock(1886413172, q.id) from ( -- guard: order locked
    select distinct k.queue_id as id from penstock.kind k where k.name = any (v_kinds) order by 1
  ) q;

  -- Account and dedupe key: the caller's, else the kind's.
  if v_named or exists (
    select from penstock.kind k where k.name = any (v_kinds)
      and coalesce(k.account_field, k.account_fixed, k.dedupe_field, k.dedupe_fixed) is not null)
  then
    select array_agg((j.ordinal, j.kind, j.payload, n.account, n.key, j.topic, j.priority,
        j.run_at, j.delay, j.max_attempts, j.timeout, j.expires, j.metadata, j.price,
        j.webhook_url)::penstock.new_job order by j.ordinal),
      array_agg(n.account order by j.ordinal), bool_or(n.key is not null)
    into p_jobs, v_names, v_keyed
    from unnest(p_jobs) j join penstock.kind k on k.name = j.kind
    cross join lateral (
      select coalesce(j.account, j.payload ->> k.account_field, k.account_fixed),
        coalesce(j.dedupe_key, j.payload ->> k.dedupe_field, k.dedupe_fixed)) n (account, key);
    perform penstock._ensure_accounts(v_names, v_setting.accounts_strict);
  end if;

  -- Lanes are for accounts with a limit, and for all accounts in a fair queue. These accounts are
  -- locked before anything is decided, until the caller commits. So are accounts that pay, accounts
  -- whose submits are counted, and accounts that submit for the first time.
  select bool_or(q.ordering = 'fair'), v_priced or bool_or(k.price is not null)
  into v_laned, v_priced
  from penstock.kind k join penstock.queue q on q.id = k.queue_id where k.name = any (v_kinds);
  select array_agg(w.id), array_agg(w.id) filter (where w.fresh) into v_locked, v_fresh from (
    select a.id, a.first_job_at is null as fresh
    from (select distinct u.name from unnest(v_names) u (name)) n
    join penstock.account a on a.name = n.name left join penstock.plan p on p.name = a.plan
    where v_laned or a.concurrency is not null or a.first_job_at is null
      or v_priced or p.per_hour is not null
    -- Locks account 0 only if there are jobs without an account, or all submits would wait for
    -- each other.
    union all
    select 0, false
    where v_laned and (v_names is null or array_position(v_names, null) is not null)
  ) w;
  select array_agg(l.id) into v_locked from (
    select a.id from penstock.account a where a.id = any (v_locked)
    order by a.id for no key update -- guard: account locked
  ) l;
  if v_fresh is not null and p_is_new then
    with first as (
      update penstock.account a set first_job_at = v_now
      where a.id = any (v_fresh) and a.first_job_at is null -- guard: once
      returning a.id
    )
    select array_agg(f.id) into v_fresh from first f;
    v_first_job_offsets := penstock._first_job_offsets(v_names, v_fresh, p_one_request);
  end if;
  select array_agg(a.id order by n.ordinal) as ids,
    array_agg(a.concurrency is not null order by n.ordinal) as limited,
    array_agg(p.priority order by n.ordinal) as priorities,
    bool_or(p.per_hour is not null) as counted
  into v_owner
  from unnest(v_names) with ordinality n (name, ordinal)
  left join penstock.account a on a.name = n.name
  left join penstock.plan p on p.name = a.plan;
  if v_keyed then
    v_todo := array_fill(true, array[v_left]);
  end if;

  -- Another round is needed only if a live twin finished between the insert and the read of it.
  for v_round in 1 .. 10 loop
    -- Ids rise with the ordinals. Without keys no job is left out, so the order of the ids gives
    -- the ordinals.
    select array_agg(penstock._n_of_id(v_seed, c.id) order by c.id)
        filter (where v_keyed) as ordinals,
      array_agg(c.id order by c.id) as ids, array_agg(c.status order by c.id) as statuses,
      array_agg(c.account_id order by c.id) filter (where v_names is not null) as owners,
      array_agg(c.account_id order by c.id) filter (where c.reserved > 0) as payers,
      array_agg(-c.reserved order by c.id) filter (where c.reserved > 0) as prices,
      array_agg(c.id order by c.id) filter (where c.reserved > 0) as priced,
      array_agg(c.queue_id) filter (where c.lane >= 0 and c.status = 'queued') as queues,
      array_agg(c.lane) filter (where c.lane >= 0 and c.status = 'queued') as lanes,
      array_agg(c.kind_id) filter (where c.lane >= 0 and c.status = 'queued') as kinds,
      array_agg(c.rank) filter (where c.lane >= 0 and c.status = 'queued') as ranks
    into v_new
    from penstock._insert_jobs(v_seed, v_now, p_jobs, v_kinds, null, v_todo, v_owner.ids,
      v_owner.limited, v_owner.priorities, v_first_job_offsets, v_batch, p_retry_of) c;

    if v_new.lanes is not null then
      select array_agg(s.lane) into v_strays from (
        select unnest(v_new.lanes) except select unnest(v_locked)
      ) s (lane);
      if v_strays is not null then -- guard: stray
        -- Accounts that got their limit after this function had chosen the accounts to lock. It
        -- cannot decide whether such a lane is open: the claim will move these jobs into it.
        update penstock.job j set lane = -1
        where j.id = any (v_new.ids) and j.lane = any (v_strays);
        select array_agg(u.queue), array_agg(u.lane), array_agg(u.kind), array_agg(u.rank)
        into v_new.queues, v_new.lanes, v_new.kinds, v_new.ranks
        from unnest(v_new.queues, v_new.lanes, v_new.kinds, v_new.ranks) u (queue, lane, kind, rank)
        where u.lane <> all (v_strays);
      end if;
      if v_new.lanes is not null then
        perform penstock._join_lanes(v_new.queues, v_new.lanes, v_new.kinds, v_new.ranks);
      end if;
    end if;
    v_accepted := v_accepted + coalesce(cardinality(v_new.ids), 0);
    if v_owner.counted then
      v_owners := v_owners || v_new.owners; -- guard: accepted
    end if;
    if v_new.priced is not null then
      perform penstock._book('reserve', v_new.payers, v_new.prices, v_new.priced);
    end if;
    if v_names is null then
      return query
      select u.n, u.id, u.status, false, null::bigint, v_batch
      from unnest(v_new.ids, v_new.statuses) with ordinality u (id, status, n);
    else
      return query
      select coalesce(u.ordinal, u.n), u.id, u.status, false, a.balance, v_batch
      from unnest(v_new.ordinals, v_new.ids, v_new.statuses, v_new.owners) with ordinality
        u (ordinal, id, status, owner, n)
      left join penstock.account a on a.id = u.owner and a.id <> 0;
    end if;
    exit when v_keyed is not true;

    -- A job that was not inserted has a live twin: of another caller, or earlier in this call.
    foreach v_n in array coalesce(v_new.ordinals, '{}') loop
      v_todo[v_n] := false;
    end loop;
    v_left := v_left - coalesce(cardinality(v_new.ordinals), 0);
    exit when v_left = 0;
    for v_new in
      select x.ordinal, j.id, j.status, a.balance
      from unnest(p_jobs) x
      join penstock.kind k on k.name = x.kind
      left join penstock.account a on a.name = x.account
      join penstock.job j on j.kind_id = k.id and j.account_id = coalesce(a.id, 0)
        and j.dedupe_key = x.dedupe_key
      where v_todo[x.ordinal]
    loop
      ordinal := v_new.ordinal; id := v_new.id; status := v_new.status; deduplicated := true;
      balance := v_new.balance;
      return next;
      v_todo[v_new.ordinal] := false;
      v_left := v_left - 1;
    end loop;
    exit when v_left = 0;
  end loop;

  if v_owners is not null and p_is_new then
    perform penstock._count_requests(v_owners, v_now);
  end if;
  if v_webhooks then
    -- Not for a job with a live twin: the twin's caller chose its URL.
    insert into penstock.job_webhook (job_id, url)
    select j.id, u.webhook_url from unnest(p_jobs) u
    join penstock.job j on j.id = penstock._nth_id(v_seed, u.ordinal)
    where u.webhook_url is not null;
  end if;
  if v_accepted = 0 then
    perform penstock._await_disk();
  end if;
  if p_batched and v_accepted > 0 then
    insert into penstock.batch (id, account_id, total, created_at)
    values (v_batch, case when v_owner.ids[1] = all (v_owner.ids) then v_owner.ids[1] else 0 end,
      v_accepted, v_now);
  end if;
  if v_keyed and v_left > 0 then
    perform penstock._refuse(409, 'dedupe_contended',
      'jobs with this dedupe key come and go too fast to submit another', 'dedupe_key',
      p_hint => 'Try again.');
  end if;
end
$$;
