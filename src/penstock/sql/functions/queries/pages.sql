-- Whole jobs page by page, newest first, for programs; lists.sql has the short form for people.
--
-- The cost of a page has a bound, however long history is and however rare the wanted jobs are: one
-- index is read in the order of ids, and the other filters are applied row by row, to at most
-- _page_scan_limit() rows. A page that ends there is short, or empty, and says where the next one
-- begins.

create or replace function penstock._page_scan_limit() returns integer
language sql immutable parallel safe
as $$ select 100000 $$;

-- The newest ids of `job` or `finished` that match; floor: the last id read, null: all were read.
-- p_unsuccessful: read history's index of jobs that did not succeed. Dynamic SQL, so that it is
-- planned for these filters; without sorts: the planner would rather sort all rows than read an
-- index to its end.
create or replace function penstock._page_of(
  p_table regclass, p_status penstock.job_status, p_kind integer, p_queue integer,
  p_account bigint, p_topic text, p_batch uuid, p_limit integer, p_before uuid,
  p_unsuccessful boolean, out ids uuid[], out floor uuid
)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_sort = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_row record;
  v_read integer := 0;
  v_batch uuid := case when not p_unsuccessful then p_batch end;
  v_topic text := case when not p_unsuccessful and p_batch is null then p_topic end;
  v_account bigint := case when not p_unsuccessful and p_batch is null and p_topic is null
    then p_account end;
begin
  for v_row in execute format(
    'select r.id, r.status, r.kind_id, r.queue_id, r.account_id, r.topic, r.batch_id from %s r
     where ($1 is null or r.id < $1)
       and ($2 is null or r.batch_id = $2)
       and ($3 is null or r.topic = $3)
       and ($4 is null or (r.account_id = $4 and r.account_id <> 0))
       and (not $5 or r.status <> ''succeeded'')
     order by r.id desc', p_table)
    using p_before, v_batch, v_topic, v_account, p_unsuccessful
  loop
    v_read := v_read + 1;
    if (p_status is null or v_row.status = p_status)
      and (p_kind is null or v_row.kind_id = p_kind)
      and (p_queue is null or v_row.queue_id = p_queue)
      and (p_account is null or v_row.account_id = p_account)
      and (p_topic is null or v_row.topic = p_topic)
      and (p_batch is null or v_row.batch_id = p_batch)
    then
      ids := ids || v_row.id;
      exit when cardinality(ids) = p_limit;
    end if;
    if v_read = penstock._page_scan_limit() then
      floor := v_row.id;
      exit;
    end if;
  end loop;
end
$$;

-- The ids of a page. after: where the next one begins, or null; seen: the page ended because it
-- reached _page_scan_limit(), and not because it is full or the last.
create or replace function penstock._page_ids(
  p_status text, p_kind text, p_queue text, p_account text, p_topic text, p_batch uuid,
  p_limit integer, p_before uuid, out ids uuid[], out after uuid, out seen boolean
)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_status penstock.job_status := penstock._find_status(p_status);
  v_kind integer;
  v_queue integer;
  v_account bigint;
  v_indexed boolean := coalesce(p_account, p_topic) is not null or p_batch is not null;
  v_rare boolean := coalesce(v_status in ('failed', 'cancelled'), false);
  v_live record;
  v_finished record;
  v_unsuccessful record;
begin
  if p_kind is not null then
    v_kind := (penstock._find_kind(p_kind)).id;
  end if;
  if p_queue is not null then
    v_queue := (penstock._find_queue(p_queue)).id;
  end if;
  if p_account is not null then
    -- The first job of an account creates it; until then, search for a number that none has.
    v_account := coalesce((select a.id from penstock.account a where a.name = p_account), -1);
  end if;
  select null::uuid[] as ids, null::uuid as floor into v_live;
  v_finished := v_live;
  if v_status in ('running', 'awaiting') and not v_indexed then
    -- There are few of them, and they have their own index.
    select array_agg(s.id) as ids, null::uuid as floor into v_live from (
      select j.id from penstock.job j
      where j.deadline_at is not null and j.status = v_status
        and (p_before is null or j.id < p_before)
        and (v_kind is null or j.kind_id = v_kind)
        and (v_queue is null or j.queue_id = v_queue)
      order by j.id desc limit p_limit
    ) s;
  elsif v_status is null or v_status in ('scheduled', 'queued', 'running', 'awaiting') then
    v_live := penstock._page_of('penstock.job', v_status, v_kind, v_queue, v_account, p_topic,
      p_batch, p_limit, p_before, false);
  end if;
  if v_status is null or v_status in ('succeeded', 'failed', 'cancelled') then
    v_finished := penstock._page_of('penstock.finished', v_status, v_kind, v_queue, v_account,
      p_topic, p_batch, p_limit, p_before, v_rare and not v_indexed);
    -- Few failures among many jobs of the account, topic or batch: another index may lead further.
    if v_finished.floor is not null and v_rare and v_indexed then
      v_unsuccessful := penstock._page_of('penstock.finished', v_status, v_kind, v_queue, v_account,
        p_topic, p_batch, p_limit, p_before, true);
      if v_unsuccessful.floor is null or v_unsuccessful.floor < v_finished.floor then
        v_finished := v_unsuccessful;
      end if;
    end if;
  end if;
  -- Below the higher floor, one of the two tables was not read.
  after := greatest(v_live.floor, v_finished.floor);
  ids := array(
    select u.id from unnest(v_live.ids || v_finished.ids) u (id)
    where after is null or u.id >= after
    order by u.id desc limit p_limit);
  seen := after is not null and cardinality(ids) < p_limit;
  if cardinality(ids) = p_limit then
    after := ids[p_limit];
  end if;
end
$$;

-- A row per job, as read_job returns it but without attempts, position and ETA; then a row without
-- a job, with the id after which the next page begins, or null. A page also ends after 8 MB,
-- because results may be large. p_public: as customers see them.
create or replace function penstock.page_jobs(
  p_status text default null, p_kind text default null, p_queue text default null,
  p_account text default null, p_topic text default null, p_batch uuid default null,
  p_limit integer default 50, p_before uuid default null, p_public boolean default false
) returns table (job text, after uuid)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_page record;
  v_after uuid;
  v_id uuid;
  v_job jsonb;
  v_bytes bigint := 0;
begin
  perform penstock._check_limit(p_limit);
  v_page := penstock._page_ids(p_status, p_kind, p_queue, p_account, p_topic, p_batch, p_limit,
    p_before);
  v_after := v_page.after;
  foreach v_id in array v_page.ids loop
    v_job := penstock._read_job(v_id, null, false);
    job := (case when p_public then penstock._public_job(v_job) else v_job end)::text;
    return next;
    v_bytes := v_bytes + length(job);
    if v_bytes > 8388608 then
      v_after := v_id;
      exit;
    end if;
  end loop;
  job := null;
  after := v_after;
  return next;
end
$$;
