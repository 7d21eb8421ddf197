-- Jobs that were submitted together, read and cancelled as one batch.

create or replace function penstock._batch_items(p_batch uuid)
returns table (
  id uuid, status penstock.job_status, started boolean, done numeric, reserved bigint,
  finished_at timestamptz
)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select j.id, j.status, j.attempt > 0,
    case when jsonb_typeof(j.progress -> 'done') = 'number'
        and jsonb_typeof(j.progress -> 'total') = 'number'
      then coalesce(least(1, greatest(0, (j.progress ->> 'done')::numeric
        / nullif((j.progress ->> 'total')::numeric, 0))), 0) else 0 end,
    j.reserved, null
  from penstock.job j where j.batch_id = p_batch
  union all
  select f.id, f.status, f.attempt > 0, 1, f.reserved, f.finished_at
  from penstock.finished f where f.batch_id = p_batch
$$;

-- Refuses an account that does not own the whole batch. null: the caller may see every batch.
create or replace function penstock._refuse_foreign_batch(p_id uuid, p_account text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
  perform from penstock.batch b
  where b.id = p_id
    and (p_account is null or b.account_id = ( -- guard: account
      select a.id from penstock.account a where a.name = p_account));
  if not found then
    perform penstock._refuse(404, 'unknown_batch', format('there is no batch %s', p_id), 'id',
      p_hint => 'Batches are kept as long as their jobs.');
  end if;
end
$$;

-- A batch with its totals, the results so far, and its first 1,000 jobs.
create or replace function penstock.read_batch(id uuid) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select penstock.read_batch_of(read_batch.id, null, 1000) - 'next' $$;

-- The same for an account; null: for any account. Returns p_limit jobs after p_after, with their
-- results, as customers see them if an account or p_public is given. next: the p_after of the
-- next page, or null. The totals read each job once.
create or replace function penstock.read_batch_of(
  p_id uuid, p_account text, p_limit integer default 100, p_after uuid default null,
  p_public boolean default false
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $$
declare
  v_batch penstock.batch;
  v_sum record;
  v_waiting record;
  v_credits jsonb;
  v_ids uuid[];
  v_id uuid;
  v_next uuid;
  v_job jsonb;
  v_bytes bigint := 0;
  v_items jsonb[] := '{}';
  v_partial jsonb[] := '{}';
begin
  perform penstock._refuse_foreign_batch(p_id, p_account);
  select * into v_batch from penstock.batch b where b.id = p_id;
  perform penstock._refuse_odd_limit(p_limit);
  select count(*) as n, count(*) filter (where i.status = 'succeeded') as succeeded,
    count(*) filter (where i.status = 'failed') as failed,
    count(*) filter (where i.status = 'cancelled') as cancelled,
    count(*) filter (where i.status in ('running', 'awaiting')) as running,
    count(*) filter (where i.status in ('queued', 'scheduled')) as queued,
    bool_or(i.started) as begun, coalesce(sum(i.done), 0) as done,
    max(i.finished_at) as finished_at, sum(i.reserved) as reserved
  into v_sum
  from penstock._batch_items(v_batch.id) i;
  -- The batch has the position and the ETA of its first queued job.
  select w.queue_position, w.eta_seconds into v_waiting
  from (
    select j from penstock.job j where j.batch_id = v_batch.id and j.status = 'queued'
    order by j.rank limit 1
  ) f
  cross join lateral penstock._waiting(f.j, penstock._counted_positions())
    w (queue_position, eta_seconds, waiting_for);
  if v_sum.reserved > 0 then
    select jsonb_build_object('reserved', v_sum.reserved, 'charged', coalesce(sum(r.charged), 0),
      'refunded', coalesce(sum(r.refunded), 0))
    into v_credits
    from penstock._batch_items(v_batch.id) i join penstock.resolution r on r.job_id = i.id;
  end if;
  -- One more than the limit shows whether there are more.
  v_ids := array(
    select s.id from (
      select * from (
        select j.id from penstock.job j
        where j.batch_id = v_batch.id and (p_after is null or j.id > p_after)
        order by j.id limit p_limit + 1
      ) live
      union all
      select * from (
        select f.id from penstock.finished f
        where f.batch_id = v_batch.id and (p_after is null or f.id > p_after)
        order by f.id limit p_limit + 1
      ) finished
    ) s
    order by s.id limit p_limit + 1);
  if cardinality(v_ids) > p_limit then
    v_next := v_ids[p_limit];
  end if;
  foreach v_id in array v_ids[:p_limit] loop
    v_job := penstock._read_job(v_id, null, false);
    if p_public or p_account is not null then
      v_job := penstock._public_job(v_job);
    end if;
    v_items := v_items || v_job;
    v_partial := v_partial || coalesce(
      case when v_job -> 'result' <> 'null' then v_job -> 'result' end,
      v_job #> '{progress,partial}', 'null');
    v_bytes := v_bytes + pg_column_size(v_job);
    -- Limits the size of a page: results may be large.
    if v_bytes > 8388608 and v_id < v_ids[cardinality(v_ids)] then
      v_next := v_id;
      exit;
    end if;
  end loop;
  return jsonb_build_object('id', v_batch.id,
    'account', (select a.name from penstock.account a where a.id = v_batch.account_id),
    'total', v_batch.total, 'pruned', v_batch.total - v_sum.n, 'succeeded', v_sum.succeeded,
    'failed', v_sum.failed,
    'cancelled', v_sum.cancelled, 'running', v_sum.running, 'queued', v_sum.queued,
    'status', case
      when v_sum.running > 0 or (v_sum.queued > 0 and v_sum.begun) then 'running'
      when v_sum.queued > 0 then 'queued'
      when v_sum.succeeded > 0 then 'succeeded'
      when v_sum.failed > 0 then 'failed' else 'cancelled' end,
    -- Pruned jobs had finished.
    'progress', jsonb_build_object('done', round(v_sum.done + v_batch.total - v_sum.n, 3),
      'total', v_batch.total, 'partial', to_jsonb(v_partial)),
    'credits', v_credits, 'position', v_waiting.queue_position,
    'eta_seconds', v_waiting.eta_seconds,
    'created_at', penstock._rfc3339(v_batch.created_at),
    'finished_at', case when v_sum.running + v_sum.queued = 0
      then penstock._rfc3339(v_sum.finished_at) end,
    'items', to_jsonb(v_items), 'next', v_next);
end
$$;

create or replace function penstock.cancel_batch(id uuid) returns jsonb
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$ select penstock.cancel_batch_of(cancel_batch.id, null, 1000) - 'next' $$;

-- Cancels the waiting jobs of a batch, and asks the running ones to finish.
create or replace function penstock.cancel_batch_of(
  p_id uuid, p_account text, p_limit integer default 100, p_after uuid default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_job uuid;
  v_accounts bigint[];
begin
  perform penstock._refuse_foreign_batch(p_id, p_account);
  -- Accounts before jobs, in order: a batch may hold jobs of many accounts.
  select array_agg(l.id) into v_accounts from (
    select a.id from penstock.account a
    where a.id in (select j.account_id from penstock.job j
                   where j.batch_id = p_id and (j.lane >= 0 or j.reserved > 0))
    order by a.id for no key update
  ) l;
  perform penstock._finish_waiting(
    array(select j.id from penstock.job j
          where j.batch_id = p_id and j.status in ('scheduled', 'queued')
          order by j.id for update),
    'cancelled',
    '{"class": "cancelled", "message": "cancelled while it waited", "retryable": false}',
    v_accounts);
  -- Running jobs, and those that changed meanwhile.
  for v_job in
    select j.id from penstock.job j where j.batch_id = p_id order by j.id
  loop
    perform penstock.cancel_job(v_job);
  end loop;
  perform penstock._await_standbys();
  return penstock.read_batch_of(p_id, p_account, p_limit, p_after);
end
$$;
