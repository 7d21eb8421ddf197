-- What an outside function reports about jobs that were dispatched to it. Each item has its own
-- verdict:
--   accepted   it took effect          duplicate  the attempt had settled already
--   stale      of an older attempt     unknown    no such job
--   invalid    the token is wrong      locked     an app's transaction locks the account: try again
-- Outcomes that an item may give: succeeded, failed, retry, provisional and deferred, as a worker
-- reports them of a call; and progress, after which the attempt goes on.

-- Settles callbacks. An outside function may report that it is unavailable or busy, as it would to
-- a caller (p_effects, p_retry_afters: see circuit.sql). It may not report that an operator has to
-- act, nor an address that workers connect to, nor frames.
create or replace function penstock.resolve_callbacks(
  p_jobs uuid[], p_attempts integer[], p_tokens text[], p_outcomes text[],
  p_results jsonb[] default null, p_errors jsonb[] default null, p_units bigint[] default null,
  p_usages jsonb[] default null, p_delays interval[] default null, p_stages text[] default null,
  p_progress jsonb[] default null, p_wait interval default null, p_effects text[] default null,
  p_retry_afters interval[] default null
) returns table (job_id uuid, outcome text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_known text[] := '{succeeded, failed, retry, provisional, deferred, progress}';
  v_effects_allowed text[] := '{opens, counts, pauses, none}';
  v_item record;
  v_verdict text;
  -- Of the items that take effect, at the index of the item.
  v_queues integer[] := array_fill(null::integer, array[cardinality(p_jobs)]);
  v_started timestamptz[] := array_fill(null::timestamptz, array[cardinality(p_jobs)]);
  v_setting penstock.setting;
begin
  select * into v_setting from penstock.setting;
  select array_agg(case when t.effect = any (v_effects_allowed) then t.effect end order by t.n),
    array_agg(case when t.effect = any (v_effects_allowed) then t.retry_after end order by t.n),
    array_agg(case when jsonb_typeof(t.error) = 'object' then t.error - 'frames' else t.error end
      order by t.n)
  into p_effects, p_retry_afters, p_errors
  from unnest(p_effects, p_retry_afters, p_errors)
    with ordinality t (effect, retry_after, error, n);
  if p_wait is not null then
    -- All at once and first: item by item, each would wait while the gates of the earlier ones are
    -- locked.
    perform penstock._lock_slots(p_jobs, null, p_wait);
  end if;
  for v_item in
    select t.*, sha256(convert_to(t.token, 'UTF8')) as callback, j.queue_id, j.started_at
    from unnest(p_jobs, p_attempts, p_tokens, p_outcomes, p_results, p_errors, p_units, p_usages,
        p_delays, p_stages, p_progress, p_effects, p_retry_afters)
      with ordinality t (id, attempt, token, outcome, result, error, units, usage, delay, stage,
        progress, effect, retry_after, n)
    left join penstock.job j on j.id = t.id
    -- By queue, so that two concurrent calls lock the gates in the same order.
    order by j.queue_id, t.id, t.n
  loop
    job_id := v_item.id;
    if v_item.outcome is null
      or v_item.outcome <> all (v_known) -- guard: outcome known
      or v_item.token is null -- guard: token given
      or v_item.units < 0 -- guard: units
      or (v_item.result is not null
        and penstock._payload_fault(v_item.result, v_setting) is not null)
      or (v_item.progress is not null
        and penstock._payload_fault(v_item.progress, v_setting) is not null)
    then
      outcome := 'invalid';
      return next;
      continue;
    end if;
    if v_item.outcome = 'progress' then
      select r.verdict into v_verdict
      from penstock.report_progress(null, array[v_item.id], array[v_item.attempt],
        array[v_item.stage], null, array[v_item.progress], array[v_item.units],
        array[v_item.callback]) r;
    else
      select s.verdict into v_verdict
      from penstock._settle_jobs(null, v_item.callback, array[v_item.id], array[v_item.attempt],
        array[v_item.outcome], array[v_item.result], array[v_item.error], array[v_item.delay],
        null, array[v_item.usage], array[v_item.units], p_update_circuits => false,
        p_effects => array[v_item.effect], p_retry_afters => array[v_item.retry_after]) s;
      if v_verdict = 'done' then
        v_queues[v_item.n] := v_item.queue_id;
        v_started[v_item.n] := v_item.started_at;
      end if;
    end if;
    outcome := case v_verdict when 'done' then 'accepted' when 'locked' then 'locked'
      else penstock._why_stale(v_item.id, v_item.attempt) end;
    return next;
  end loop;
  -- Circuits after all gates: finish_jobs of the same queues locks them in that order.
  perform penstock._apply_outcomes_to_circuits(p_jobs, p_attempts, v_queues, v_started,
    p_outcomes, p_errors, p_effects, p_retry_afters, null, penstock.clock());
end
$$;

create or replace function penstock._why_stale(p_job uuid, p_attempt integer) returns text
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    (select case when exists (select from penstock.attempt t
                              where t.job_id = p_job and t.attempt = p_attempt) then 'stale'
              else 'invalid' end
     from penstock.job j where j.id = p_job),
    (select case when f.attempt = p_attempt and f.finished_by_attempt then 'duplicate'
              else 'stale' end
     from penstock.finished f where f.id = p_job),
    'unknown')
$$;

-- Settles an attempt that a worker handed over but no function accepted, as the worker reports,
-- unless a callback came first. The token identifies the attempt: the worker does not own it any
-- more. Verdicts as in finish.sql.
create or replace function penstock.release_job(
  p_job uuid, p_attempt integer, p_token text, p_outcome text, p_error jsonb,
  p_delay interval default null, p_wait interval default null, p_effect text default null,
  p_retry_after interval default null, p_address text default null
) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if p_token is null or p_outcome is null or p_outcome not in
    ('failed', 'cancelled', 'retry', 'provisional', 'deferred', 'snoozed', 'timed_out', 'stuck')
  then
    perform penstock._refuse(422, 'invalid_finish',
      'an attempt that was handed over can be released as failed, cancelled, retry, provisional, '
      'deferred, snoozed, timed_out or stuck, with its token', 'outcome');
  end if;
  return (
    select s.verdict
    from penstock._settle_jobs(null, sha256(convert_to(p_token, 'UTF8')), array[p_job],
      array[p_attempt], array[p_outcome], null, array[p_error], array[p_delay], null,
      p_wait => p_wait, p_effects => array[p_effect], p_retry_afters => array[p_retry_after],
      p_addresses => array[p_address]) s);
end
$$;

-- The kind and queue of jobs, live or finished: the kind decides how signatures of callbacks are
-- checked.
create or replace function penstock.find_callbacks(p_jobs uuid[])
returns table (job_id uuid, kind text, queue text)
language sql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
  select u.id, k.name, q.name
  from unnest(p_jobs) u (id)
  left join penstock.job j on j.id = u.id
  left join penstock.finished f on f.id = u.id
  join penstock.kind k on k.id = coalesce(j.kind_id, f.kind_id)
  join penstock.queue q on q.id = coalesce(j.queue_id, f.queue_id)
$$;

-- Records a signed message, and returns whether it is new: true for the first transaction only.
create or replace function penstock.remember_callback(p_signature bytea) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  with kept as (
    insert into penstock.seen_callback (signature, seen_at) values (p_signature, penstock.clock())
    on conflict do nothing returning signature
  )
  select exists (select from kept)
$$;
