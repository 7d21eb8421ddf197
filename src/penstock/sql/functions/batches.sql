-- Jobs that were submitted together, seen as one.

create or replace function penstock._batch_items(p_batch uuid)
returns table (
  id uuid, status penstock.job_status, started boolean, done numeric, partial jsonb,
  reserved bigint, finished_at timestamptz
)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select j.id, j.status, j.attempt > 0,
    case when jsonb_typeof(j.progress -> 'done') = 'number'
        and jsonb_typeof(j.progress -> 'total') = 'number'
      then coalesce(least(1, greatest(0, (j.progress ->> 'done')::numeric
        / nullif((j.progress ->> 'total')::numeric, 0))), 0) else 0 end,
    j.progress -> 'partial', j.reserved, null
  from penstock.job j where j.batch_id = p_batch
  union all
  select f.id, f.status, f.attempt > 0, 1, coalesce(f.result, f.progress -> 'partial'), f.reserved,
    f.finished_at
  from penstock.finished f where f.batch_id = p_batch
$$;

-- A batch with its totals, what there is of its results, and its first 1,000 jobs.
create or replace function penstock.read_batch(id uuid) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_batch penstock.batch;
  v_sum record;
  v_wait record;
  v_credits jsonb;
  v_items jsonb;
begin
  select * into v_batch from penstock.batch b where b.id = read_batch.id;
  if not found then
    perform penstock._refuse(404, 'unknown_batch', format('there is no batch %s', read_batch.id),
      'id', p_hint => 'Batches are kept as long as their jobs.');
  end if;
  select count(*) as n, count(*) filter (where i.status = 'succeeded') as succeeded,
    count(*) filter (where i.status = 'failed') as failed,
    count(*) filter (where i.status = 'cancelled') as cancelled,
    count(*) filter (where i.status in ('running', 'awaiting')) as running,
    count(*) filter (where i.status in ('queued', 'scheduled')) as queued,
    bool_or(i.started) as begun, coalesce(sum(i.done), 0) as done,
    max(i.finished_at) as finished_at, sum(i.reserved) as reserved,
    jsonb_agg(i.partial order by i.id) filter (where i.n <= 1000) as partial,
    array_agg(i.id order by i.id) filter (where i.n <= 1000) as ids
  into v_sum
  from (select b.*, row_number() over (order by b.id) as n
        from penstock._batch_items(v_batch.id) b) i;
  -- Its wait is that of its first job that has to wait.
  select w.place, w.eta_seconds into v_wait
  from (
    select j from penstock.job j where j.batch_id = v_batch.id and j.status = 'queued'
    order by j.rank limit 1
  ) f
  cross join lateral penstock._waiting(f.j, penstock._counted_places()) w;
  if v_sum.reserved > 0 then
    select jsonb_build_object('reserved', v_sum.reserved, 'charged', coalesce(sum(r.charged), 0),
      'refunded', coalesce(sum(r.refunded), 0))
    into v_credits
    from penstock._batch_items(v_batch.id) i join penstock.resolution r on r.job_id = i.id;
  end if;
  select jsonb_agg(penstock._read_job(u.job_id, null) - 'attempts' order by u.n) into v_items
  from unnest(v_sum.ids) with ordinality u (job_id, n);
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
    -- Jobs that were pruned had ended.
    'progress', jsonb_build_object('done', round(v_sum.done + v_batch.total - v_sum.n, 3),
      'total', v_batch.total, 'partial', coalesce(v_sum.partial, '[]')),
    'credits', v_credits, 'position', v_wait.place, 'eta_seconds', v_wait.eta_seconds,
    'created_at', penstock._rfc3339(v_batch.created_at),
    'finished_at', case when v_sum.running + v_sum.queued = 0
      then penstock._rfc3339(v_sum.finished_at) end,
    'items', coalesce(v_items, '[]'));
end
$$;

-- Cancels what waits of it, and asks what runs to end.
create or replace function penstock.cancel_batch(id uuid) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_job uuid;
  v_accounts bigint[];
begin
  -- Accounts before jobs, in order: a batch may be of many.
  select array_agg(l.id) into v_accounts from (
    select a.id from penstock.account a
    where a.id in (select j.account_id from penstock.job j
                   where j.batch_id = cancel_batch.id and (j.lane >= 0 or j.reserved > 0))
    order by a.id for no key update
  ) l;
  perform penstock._end_waiting(
    array(select j.id from penstock.job j
          where j.batch_id = cancel_batch.id and j.status in ('scheduled', 'queued')
          order by j.id for update),
    'cancelled',
    '{"class": "cancelled", "message": "cancelled while it waited", "retryable": false}',
    v_accounts);
  -- What runs, and what has changed meanwhile.
  for v_job in
    select j.id from penstock.job j where j.batch_id = cancel_batch.id order by j.id
  loop
    perform penstock.cancel_job(v_job);
  end loop;
  return penstock.read_batch(cancel_batch.id);
end
$$;
