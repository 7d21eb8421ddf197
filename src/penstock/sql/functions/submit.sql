-- Accepting jobs: one core for any number of them, in the caller's transaction.
--
-- In this order, which is the lock order of lifecycle.sql: everything is checked; unknown accounts
-- are made; limited accounts are locked; jobs are inserted, those with a dedupe key in key order;
-- lanes are told. Nothing here touches a row that a whole queue shares.

-- What is wrong with a job, or null. p_known: its kind's row; p_latest: the last moment it may be
-- due. Inlined where it is called, or a bulk submit would take twice as long.
create or replace function penstock._job_fault(
  p_kind text, p_known penstock.kind, p_payload jsonb, p_account text, p_dedupe_key text,
  p_topic text, p_priority integer, p_run_at timestamptz, p_delay interval,
  p_max_attempts integer, p_timeout interval, p_expires interval, p_metadata jsonb,
  p_latest timestamptz, p_setting penstock.setting
) returns text
language sql stable parallel safe
as $$
  select case
    when p_kind is null then 'kind_missing'
    when p_known.id is null then 'unknown_kind'
    when jsonb_typeof(p_payload) is distinct from 'object' then 'invalid_payload'
    when p_priority not between -1000 and 1000 then 'priority'
    when p_delay < interval '0' or p_delay > interval '3650 days' then 'delay_seconds'
    when not isfinite(p_run_at) or p_run_at > p_latest then 'run_at'
    when p_run_at is not null and p_delay is not null then 'run_at_and_delay'
    when p_max_attempts not between 1 and 1000 then 'max_attempts'
    when p_timeout <= interval '0' or p_timeout > interval '3650 days' then 'timeout_seconds'
    when p_expires <= interval '0' or p_expires > interval '3650 days' then 'expires_seconds'
    -- An index takes no longer ones, so those that a kind reads from the payload count too.
    when length(coalesce(p_dedupe_key, p_payload ->> p_known.dedupe_field)) not between 1 and 500
      then 'dedupe_key'
    when length(coalesce(p_topic, p_payload ->> p_known.topic_field)) not between 1 and 500
      then 'topic'
    when length(coalesce(p_account, p_payload ->> p_known.account_field)) not between 1 and 200
      then 'account'
    -- Null first: an unknown left side would not keep the function from being called.
    when p_metadata is not null and (
      jsonb_typeof(p_metadata) <> 'object' or octet_length(p_metadata::text) > 16384
      or (octet_length(p_metadata::text) > 2 * p_setting.payload_max_depth
        and penstock._payload_fault(p_metadata, p_setting) is not null)) then 'metadata'
    when octet_length(p_payload::text) > 2 * p_setting.payload_max_depth
      then penstock._payload_fault(p_payload, p_setting)
    end
$$;

-- The first wrong item of a batch, or nothing.
create or replace function penstock._first_fault(
  p_kinds text[], p_payloads jsonb[], p_accounts text[], p_dedupe_keys text[], p_topics text[],
  p_priorities integer[], p_run_ats timestamptz[], p_delays interval[], p_max_attempts integer[],
  p_timeouts interval[], p_expires interval[], p_metadata jsonb[], p_latest timestamptz
) returns table (ordinal bigint, fault text, kind text, account text)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
  select x.ordinal, c.fault, x.kind, x.account
  from unnest(p_kinds, p_payloads, p_accounts, p_dedupe_keys, p_topics, p_priorities, p_run_ats,
              p_delays, p_max_attempts, p_timeouts, p_expires, p_metadata) with ordinality
    x (kind, payload, account, dedupe_key, topic, priority, run_at, delay, max_attempts, timeout,
       expires, metadata, ordinal)
  cross join penstock.setting s
  left join penstock.kind k on k.name = x.kind
  cross join lateral (select penstock._job_fault(x.kind, k, x.payload, x.account, x.dedupe_key,
    x.topic, x.priority, x.run_at, x.delay, x.max_attempts, x.timeout, x.expires, x.metadata,
    p_latest, s)) c (fault)
  where c.fault is not null
  order by x.ordinal
  limit 1;
end
$$;

create or replace function penstock._refuse_fault(
  p_fault text, p_kind text, p_index bigint, p_setting penstock.setting
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_where jsonb := jsonb_build_object('index', p_index);
begin
  case p_fault
    when 'kind_missing' then
      perform penstock._refuse(422, 'invalid_job', 'kind is required', 'kind', v_where);
    when 'unknown_kind' then
      perform penstock._refuse(404, 'unknown_kind',
        format('there is no job kind %s', p_kind), 'kind',
        v_where || jsonb_build_object('kind', p_kind),
        'Kinds are declared when a worker of the app or the penstock.toml has started once; is the '
        'name spelt as there?');
    when 'invalid_payload' then
      perform penstock._refuse(422, 'invalid_payload', 'payload must be a JSON object', 'payload',
        v_where);
    when 'payload_too_large' then
      perform penstock._refuse(413, 'payload_too_large',
        format('payload is larger than %s bytes', p_setting.payload_max_bytes), 'payload',
        v_where || jsonb_build_object('max_bytes', p_setting.payload_max_bytes),
        'Upload large data and refer to it.');
    when 'payload_too_deep' then
      perform penstock._refuse(422, 'invalid_payload',
        format('payload is nested deeper than %s levels', p_setting.payload_max_depth),
        'payload', v_where);
    when 'payload_too_many_keys' then
      perform penstock._refuse(422, 'invalid_payload',
        format('payload has more than %s keys', p_setting.payload_max_keys), 'payload', v_where);
    when 'payload_number_too_long' then
      perform penstock._refuse(422, 'invalid_payload',
        format('a number in payload has more than %s digits', p_setting.number_max_digits),
        'payload', v_where);
    when 'priority' then
      perform penstock._refuse(422, 'invalid_job',
        'priority must be from -1000 to 1000, lower runs first', 'priority', v_where);
    when 'delay_seconds', 'timeout_seconds', 'expires_seconds' then
      perform penstock._refuse(422, 'invalid_job',
        format('%s must be %s and at most ten years', p_fault,
               case p_fault when 'delay_seconds' then '0 or more' else 'more than 0' end),
        p_fault, v_where);
    when 'run_at' then
      perform penstock._refuse(422, 'invalid_job',
        'run_at must be a moment within ten years', 'run_at', v_where);
    when 'run_at_and_delay' then
      perform penstock._refuse(422, 'invalid_job',
        'give run_at or delay_seconds, not both', 'run_at', v_where);
    when 'max_attempts' then
      perform penstock._refuse(422, 'invalid_job', 'max_attempts must be from 1 to 1000',
        'max_attempts', v_where);
    when 'dedupe_key', 'topic' then
      perform penstock._refuse(422, 'invalid_job',
        format('%s must be a text of 1 to 500 characters', p_fault), p_fault, v_where);
    when 'account' then
      perform penstock._refuse(422, 'invalid_job',
        'account must be a text of 1 to 200 characters', 'account', v_where);
    when 'metadata' then
      perform penstock._refuse(422, 'invalid_job',
        'metadata must be a JSON object of at most 16384 bytes, with no deeper nesting and no '
        'longer numbers than a payload may have', 'metadata', v_where);
  end case;
end
$$;

-- Accounts not seen before, with the default plan; under `strict` they are refused.
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
  v_plan := penstock._hold_plan(null);
  insert into penstock.account (name, plan, concurrency, weight, created_at, limited_at)
  select n.name, v_plan.name, v_plan.concurrency, coalesce(v_plan.weight, 1), penstock.clock(),
    penstock.clock()
  from unnest(v_new) n (name)
  on conflict (name) do nothing;
end
$$;

-- Submits any number of jobs, all or none. Arrays go element by element; a null array means null
-- for all. One row per job, in order: its id, or the live twin's with deduplicated = true.
create or replace function penstock.submit_many(
  p_kinds text[], p_payloads jsonb[], p_accounts text[] default null,
  p_dedupe_keys text[] default null, p_topics text[] default null,
  p_priorities integer[] default null, p_run_ats timestamptz[] default null,
  p_delays interval[] default null, p_max_attempts integer[] default null,
  p_timeouts interval[] default null, p_expires interval[] default null,
  p_metadata jsonb[] default null, p_batch uuid default null, p_retry_of uuid default null
) returns table (ordinal bigint, id uuid, status penstock.job_status, deduplicated boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  -- Sorting 50,000 jobs by key stays in memory; planning anew for each array took longer than the
  -- rest of a single submit (2026-11). Nothing below joins one array to another.
  set work_mem = '64MB' set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_setting penstock.setting;
  v_now timestamptz := penstock.clock();
  v_seed uuid := penstock.new_id(v_now);
  v_bad record;
  v_names text[];
  v_keys text[];
  v_laned boolean;
  v_kinds text[] := array(select distinct unnest(p_kinds));
  v_locked bigint[];
  v_strays bigint[];
  v_todo boolean[]; -- by ordinal: neither inserted nor found yet
  v_left integer := cardinality(p_kinds);
  v_owner record; -- by ordinal
  v_new record;
  v_n bigint;
begin
  select * into v_setting from penstock.setting;
  if coalesce(cardinality(p_kinds), 0) = 0
    or cardinality(p_payloads) is distinct from cardinality(p_kinds)
  then
    perform penstock._refuse(422, 'invalid_job', 'each job needs a kind and a payload', 'jobs');
  end if;
  if cardinality(p_kinds) > v_setting.batch_max_jobs then
    perform penstock._refuse(413, 'batch_too_large',
      format('a batch may hold at most %s jobs', v_setting.batch_max_jobs), 'jobs');
  end if;
  select * into v_bad from penstock._first_fault(p_kinds, p_payloads, p_accounts, p_dedupe_keys,
    p_topics, p_priorities, p_run_ats, p_delays, p_max_attempts, p_timeouts, p_expires,
    p_metadata, v_now + interval '3650 days');
  if found then
    perform penstock._refuse_fault(v_bad.fault, v_bad.kind, v_bad.ordinal - 1, v_setting);
  end if;

  -- The order of a queue does not change under an open submit: rank and lane depend on it.
  perform pg_advisory_xact_lock_shared(1886413172, q.id) from ( -- guard: order locked
    select distinct k.queue_id as id from penstock.kind k where k.name = any (v_kinds) order by 1
  ) q;

  -- Whose jobs, and under which key: as told, else what the kind says.
  if p_accounts is not null or p_dedupe_keys is not null or exists (
    select from penstock.kind k where k.name = any (v_kinds)
      and coalesce(k.account_field, k.account_fixed, k.dedupe_field, k.dedupe_fixed) is not null)
  then
    select array_agg(coalesce(x.account, x.payload ->> k.account_field, k.account_fixed)
                     order by x.ordinal),
      array_agg(coalesce(x.key, x.payload ->> k.dedupe_field, k.dedupe_fixed)
                order by x.ordinal)
    into v_names, v_keys
    from unnest(p_kinds, p_payloads, p_accounts, p_dedupe_keys) with ordinality
      x (kind, payload, account, key, ordinal)
    join penstock.kind k on k.name = x.kind;
    perform penstock._ensure_accounts(v_names, v_setting.accounts_strict);
  end if;

  -- Lanes are for accounts with a limit, and for everyone in a fair queue. Their accounts are
  -- locked before anything is decided, and stay so until the caller commits.
  select bool_or(q.ordering = 'fair') into v_laned
  from penstock.kind k join penstock.queue q on q.id = k.queue_id where k.name = any (v_kinds);
  select array_agg(w.id) into v_locked from (
    select a.id from (select distinct u.name from unnest(v_names) u (name)) n
    join penstock.account a on a.name = n.name
    where v_laned or a.concurrency is not null
    -- Nobody's lane only for nobody's jobs, or all submitters would wait for one another.
    union all
    select 0 where v_laned and (v_names is null or array_position(v_names, null) is not null)
  ) w;
  select array_agg(l.id) into v_locked from (
    select a.id from penstock.account a where a.id = any (v_locked)
    order by a.id for no key update -- guard: account locked => order by a.id
  ) l;
  select array_agg(a.id order by n.ordinal) as ids,
    array_agg(a.concurrency is not null order by n.ordinal) as limited,
    array_agg(p.priority order by n.ordinal) as priorities
  into v_owner
  from unnest(v_names) with ordinality n (name, ordinal)
  left join penstock.account a on a.name = n.name
  left join penstock.plan p on p.name = a.plan;
  if v_keys is not null then
    v_todo := array_fill(true, array[v_left]);
  end if;

  -- A second round only where a live twin ended between our insert and our look at it.
  for v_round in 1 .. 10 loop
    -- A small set, which the limit only tells the planner: as the hashed side of the join it
    -- leaves the jobs in order, and the sort below finds them sorted (it took a seventh of a bulk
    -- submit; 2026-11).
    with known as materialized (
      select k.name, k.id as kind_id, k.queue_id, k.priority_offset, k.topic_field, k.topic_fixed,
        coalesce(k.max_attempts, q.max_attempts) as max_attempts, q.ordering, q.aging_step
      from penstock.kind k join penstock.queue q on q.id = k.queue_id
      where k.name = any (v_kinds) limit cardinality(v_kinds)
    ),
    item as (
      select x.ordinal, penstock._nth_id(v_seed, x.ordinal) as id, k.queue_id, k.kind_id,
        coalesce(x.account_id, 0) as account_id,
        case when k.ordering = 'fair' or x.limited then coalesce(x.account_id, 0)
             else -1 end as lane,
        coalesce(x.priority, greatest(-1000, least(1000,
          coalesce(x.plan_priority, 0) + k.priority_offset))) as priority,
        greatest(v_now, coalesce(x.run_at, v_now + x.delay, v_now)) as run_at,
        k.ordering, k.aging_step, coalesce(x.max_attempts, k.max_attempts) as max_attempts,
        x.timeout, x.expires, x.metadata, x.payload, x.key,
        coalesce(x.topic, x.payload ->> k.topic_field, k.topic_fixed) as topic
      from unnest(p_kinds, p_payloads, v_owner.ids, v_owner.limited, v_owner.priorities, v_keys,
                  p_topics, p_priorities, p_run_ats, p_delays, p_max_attempts, p_timeouts,
                  p_expires, p_metadata) with ordinality
        x (kind, payload, account_id, limited, plan_priority, key, topic, priority, run_at, delay,
           max_attempts, timeout, expires, metadata, ordinal)
      join known k on k.name = x.kind
      where v_todo is null or v_todo[x.ordinal] -- guard: the rest only
    ),
    accepted as (
      insert into penstock.job (id, rank, lane, account_id, queue_id, kind_id, status, priority,
        max_attempts, created_at, updated_at, run_at, expires_at, timeout, batch_id, retry_of,
        dedupe_key, topic, metadata, payload)
      select i.id, penstock._rank(i.ordering, i.priority, i.aging_step, i.run_at, i.ordinal),
        i.lane, i.account_id, i.queue_id, i.kind_id,
        case when i.run_at > v_now then 'scheduled'::penstock.job_status
             else 'queued'::penstock.job_status end,
        i.priority, i.max_attempts, v_now, v_now, i.run_at, i.run_at + i.expires, i.timeout,
        p_batch, p_retry_of, i.key, i.topic, i.metadata, i.payload
      from item i
      -- Two batches with the same keys meet them in the same order.
      order by i.kind_id, i.account_id, i.key, i.ordinal
      on conflict (kind_id, account_id, dedupe_key) where dedupe_key is not null do nothing
      returning job.id, job.status, job.queue_id, job.lane, job.rank
    )
    -- Ids rise with the ordinals; without keys none is left out, so their order says them all.
    select array_agg(penstock._n_of_id(v_seed, c.id) order by c.id)
        filter (where v_keys is not null) as ordinals,
      array_agg(c.id order by c.id) as ids, array_agg(c.status order by c.id) as statuses,
      array_agg(c.queue_id) filter (where c.lane >= 0 and c.status = 'queued') as queues,
      array_agg(c.lane) filter (where c.lane >= 0 and c.status = 'queued') as lanes,
      array_agg(c.rank) filter (where c.lane >= 0 and c.status = 'queued') as ranks
    into v_new
    from accepted c;

    if v_new.lanes is not null then
      select array_agg(s.lane) into v_strays from (
        select unnest(v_new.lanes) except select unnest(v_locked)
      ) s (lane);
      if v_strays is not null then -- guard: stray => if false then
        -- Accounts that got their limit after we had looked whom to lock. Whether such a lane is
        -- open is not for us to say: the claim will put these jobs into it.
        update penstock.job j set lane = -1
        where j.id = any (v_new.ids) and j.lane = any (v_strays);
        select array_agg(u.queue), array_agg(u.lane), array_agg(u.rank)
        into v_new.queues, v_new.lanes, v_new.ranks
        from unnest(v_new.queues, v_new.lanes, v_new.ranks) u (queue, lane, rank)
        where u.lane <> all (v_strays);
      end if;
      if v_new.lanes is not null then
        perform penstock._join_lanes(v_new.queues, v_new.lanes, v_new.ranks);
      end if;
    end if;
    return query
    select coalesce(u.told, u.n), u.id, u.status, false
    from unnest(v_new.ordinals, v_new.ids, v_new.statuses) with ordinality
      u (told, id, status, n);
    exit when v_keys is null;

    -- What was not inserted has a live twin: another's, or an earlier item's.
    foreach v_n in array coalesce(v_new.ordinals, '{}') loop
      v_todo[v_n] := false;
    end loop;
    v_left := v_left - coalesce(cardinality(v_new.ordinals), 0);
    exit when v_left = 0;
    for v_new in
      select x.ordinal, j.id, j.status
      from unnest(p_kinds, v_names, v_keys) with ordinality x (kind, account, key, ordinal)
      join penstock.kind k on k.name = x.kind
      left join penstock.account a on a.name = x.account
      join penstock.job j on j.kind_id = k.id and j.account_id = coalesce(a.id, 0)
        and j.dedupe_key = x.key
      where v_todo[x.ordinal]
    loop
      ordinal := v_new.ordinal; id := v_new.id; status := v_new.status; deduplicated := true;
      return next;
      v_todo[v_new.ordinal] := false;
      v_left := v_left - 1;
    end loop;
    exit when v_left = 0;
  end loop;

  if v_keys is not null and v_left > 0 then
    perform penstock._refuse(409, 'dedupe_contended',
      'jobs with this dedupe key come and go too fast to submit another', 'dedupe_key',
      p_hint => 'Try again.');
  end if;
end
$$;
