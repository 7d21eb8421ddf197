-- Jobs as rows of a table for people, and details of one job for operators. Nothing here decides
-- anything, and only read_body and inspect_job read a payload or a result.

-- The jobs with these ids, in their order, in the short form. The reason why a job waits is found
-- as in read_job, but once for each queue and kind, and without counting the jobs before it: for a
-- page of jobs that would take long.
create or replace function penstock._job_rows(p_ids uuid[]) returns setof jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
  set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz := penstock.clock();
begin
  return query
  with stop as materialized (
    select w.queue_id, w.kind_id, g as gate, s.word
    from (
      select distinct j.queue_id, j.kind_id from penstock.job j
      where j.id = any (p_ids) and j.status in ('scheduled', 'queued')
    ) w
    join penstock.queue q on q.id = w.queue_id join penstock.gate g on g.queue_id = q.id
    join penstock.kind k on k.id = w.kind_id
    cross join lateral penstock._stop(q, k.name, v_now) s (word)
  )
  select penstock._short_json(j, f, k.name, q.name, a.name, r.charged, r.refunded, case
    when j.status = 'awaiting' then 'callback'
    when j.status = 'running' then null
    when j.failure_pending then 'backoff'
    -- Also for a job that is due and still scheduled, for example because there is no worker.
    when j.status = 'queued' or j.run_at <= v_now then penstock._waiting_for(s.word, q, s.gate,
      l.running, l.concurrency, 0, v_now)
    when penstock._backs_off(j) then
      case when s.word = 'circuit_open' then s.word else 'backoff' end end)
  from unnest(p_ids) with ordinality u (id, n)
  left join penstock.job j on j.id = u.id
  -- Each `case` saves the search of an index where the key is null.
  left join penstock.finished f on f.id = case when j.id is null then u.id end
  left join penstock.kind k on k.id = coalesce(j.kind_id, f.kind_id)
  left join penstock.queue q on q.id = coalesce(j.queue_id, f.queue_id)
  left join penstock.account a on a.id = coalesce(j.account_id, f.account_id)
  left join penstock.account l on l.id = j.lane
  left join penstock.resolution r on r.job_id = case when f.reserved > 0 then f.id end
  left join stop s on s.queue_id = j.queue_id and s.kind_id = j.kind_id
  where coalesce(j.id, f.id) is not null
  order by u.n;
end
$$;

-- The jobs with these ids in the short form; ids without a job are left out.
create or replace function penstock.read_rows(p_ids uuid[]) returns setof jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select r from penstock._job_rows(p_ids) r $$;

-- Jobs whose ids end with p_end, newest first, at most p_limit: people see the end of an id,
-- because the beginnings are alike. Reads at most _page_scan_limit() live and as many finished
-- jobs.
create or replace function penstock.find_by_id_end(p_end text, p_limit integer default 10)
returns setof jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan set enable_sort = off set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_ids uuid[];
begin
  if p_end is null or p_end !~ '^[0-9a-fA-F]{6,12}$' then
    perform penstock._refuse(422, 'invalid_filter',
      'the end of an id has 6 to 12 characters, 0 to 9 and a to f', 'end');
  end if;
  v_ids := array(
    select s.id from (
      (select j.id from penstock.job j order by j.id desc limit penstock._page_scan_limit())
      union all
      (select f.id from penstock.finished f order by f.id desc limit penstock._page_scan_limit())
    ) s
    where right(s.id::text, length(p_end)) = lower(p_end)
    order by s.id desc limit least(greatest(p_limit, 1), 100));
  return query select r from penstock._job_rows(v_ids) r;
end
$$;

-- A page of rows, newest first: the jobs that match, and then a row without a job, with the id
-- after which the next page begins, or null. seen: the page ended because it reached
-- _page_scan_limit().
create or replace function penstock.page_rows(
  p_status text default null, p_kind text default null, p_queue text default null,
  p_account text default null, p_topic text default null, p_batch uuid default null,
  p_limit integer default 50, p_before uuid default null
) returns table (job jsonb, after uuid, seen boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_page record;
begin
  perform penstock._check_limit(p_limit);
  v_page := penstock._page_ids(p_status, p_kind, p_queue, p_account, p_topic, p_batch, p_limit,
    p_before);
  return query select r, null::uuid, null::boolean from penstock._job_rows(v_page.ids) r;
  return query select null::jsonb, v_page.after, v_page.seen;
end
$$;

-- How many jobs match, up to p_most. exact: there are no more; if false, there are more, or the
-- scan ended at _page_scan_limit().
create or replace function penstock.count_jobs(
  p_status text default null, p_kind text default null, p_queue text default null,
  p_account text default null, p_topic text default null, p_batch uuid default null,
  p_most integer default 10000, out total bigint, out exact boolean
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_page record;
begin
  v_page := penstock._page_ids(p_status, p_kind, p_queue, p_account, p_topic, p_batch, p_most + 1,
    null);
  total := least(cardinality(v_page.ids), p_most);
  exact := v_page.after is null;
end
$$;

-- The number of all jobs by the planner's statistics; changes since the last analyze are missing.
create or replace function penstock.estimate_jobs() returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint
  from pg_class c
  where c.relkind = 'r' and c.relnamespace = 'penstock'::regnamespace
    and (c.relname = 'job' or c.oid in (
      select t.relid from pg_partition_tree('penstock.finished'::regclass) t where t.isleaf))
$$;

-- The jobs of a batch in the order of their submit, p_limit of them after p_after; next as in
-- page_rows.
create or replace function penstock.page_batch_rows(
  p_batch uuid, p_limit integer default 50, p_after uuid default null
) returns table (job jsonb, after uuid, seen boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  v_ids uuid[];
begin
  perform penstock._check_limit(p_limit);
  -- One more than wanted shows whether there are more.
  v_ids := array(
    select s.id from (
      select j.id, j.batch_id from penstock.job j
      union all
      select f.id, f.batch_id from penstock.finished f
    ) s
    where s.batch_id = p_batch and (p_after is null or s.id > p_after)
    order by s.id limit p_limit + 1);
  return query select r, null::uuid, null::boolean from penstock._job_rows(v_ids[:p_limit]) r;
  return query select null::jsonb,
    case when cardinality(v_ids) > p_limit then v_ids[p_limit] end, false;
end
$$;

-- Every kind with its queue, by name.
create or replace function penstock.list_kinds() returns table (kind text, queue text)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select k.name, q.name from penstock.kind k left join penstock.queue q on q.id = k.queue_id
  order by k.name
$$;

create or replace function penstock.list_queue_names() returns setof text
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select q.name from penstock.queue q order by q.name $$;

-- A job as read_job returns it, without its result and with details for operators: its worker, the
-- steps that its attempts have kept, and whether it has a result.
create or replace function penstock.inspect_job(p_id uuid) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
  v_job jsonb := penstock._read_job(p_id, penstock._counted_positions()) - 'result';
  v_more jsonb;
begin
  select jsonb_build_object('worker', w.name,
    'dedupe_key', coalesce(j.dedupe_key, f.dedupe_key),
    'expires_at', penstock._rfc3339(j.expires_at),
    'has_result', coalesce(f.result, 'null') <> 'null')
  into v_more
  from (select) one
  left join penstock.job j on j.id = p_id
  left join penstock.finished f on f.id = p_id
  left join penstock.worker w on w.id = coalesce(j.worker_id, f.worker_id);
  return v_job || v_more || jsonb_build_object('steps', (
    select coalesce(jsonb_agg(jsonb_build_object('name', s.name, 'attempt', s.attempt,
      'kept_at', penstock._rfc3339(s.kept_at)) order by s.kept_at, s.name), '[]')
    from (
      select t.name, t.attempt, t.kept_at from penstock.step t
      where t.job_id = p_id order by t.kept_at desc limit 200
    ) s));
end
$$;

-- The last p_most chunks of the last attempt that emitted any, in order.
create or replace function penstock.read_last_chunks(p_job uuid, p_most integer)
returns table (attempt integer, seq integer, data jsonb)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select s.attempt, s.seq, s.data from (
    select c.attempt, c.seq, c.data from penstock.chunk c
    where c.job_id = p_job
      and c.attempt = (select max(l.attempt) from penstock.chunk l where l.job_id = p_job)
    order by c.seq desc limit p_most
  ) s
  order by s.seq
$$;

-- The first p_most characters of the payload or the result of a job, with a line per value; with
-- its length and the uploads that it refers to. p_most null: all of it. A payload may have 84 KB.
create or replace function penstock.read_body(
  p_id uuid, p_part text, p_most integer default null,
  out body text, out characters integer, out uploads uuid[]
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_body jsonb;
begin
  if p_part is null or p_part not in ('payload', 'result') then
    perform penstock._refuse(422, 'invalid_request', 'part must be payload or result', 'part');
  end if;
  select case when p_part = 'payload' then r.payload else r.result end into v_body
  from (
    select j.payload, null::jsonb as result from penstock.job j where j.id = p_id
    union all
    select f.payload, f.result from penstock.finished f where f.id = p_id
  ) r;
  if not found then
    perform penstock._refuse_unknown_job(p_id);
  end if;
  body := jsonb_pretty(v_body);
  characters := length(body);
  if p_most is not null then
    body := left(body, p_most);
    uploads := array(
      select distinct (u #>> '{}')::uuid from jsonb_path_query(v_body, 'lax $.**.upload') u
      where jsonb_typeof(u) = 'string'
        and u #>> '{}' ~ '^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$'
      limit 100);
  end if;
end
$$;
