-- Find the watched jobs that have changed, for live streams. A NOTIFY only causes a poll. Each poll
-- is one statement for everything of a type that is watched, and its cost depends on that, however
-- many jobs there are. Nothing here decides anything.
--
-- A scope is a topic, an account, or a topic within an account. Ids commit out of order, so nobody
-- can remember "the last id": a poll reads the live jobs of a scope and the finished ones among its
-- newest.

-- Sends a wake-up to the watchers. It may be lost, so its commit does not wait for the disk.
create or replace function penstock.notify_change() returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  perform pg_notify('penstock_change', '');
end
$$;

-- Whether each of these may be watched: a job, batch or account that exists and belongs to that
-- account (null: any) and topic (null: any). Those of another account are reported like missing
-- ones.
create or replace function penstock.may_watch(
  p_kinds text[], p_names text[], p_accounts text[], p_topics text[]
) returns table (n bigint, seen boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
  select w.n, case w.kind
    when 'account' then exists (
      select from penstock.account a
      where a.name = w.name and (w.account is null or a.name = w.account))
    when 'batch' then exists (
      select from penstock.batch b left join penstock.account a on a.id = b.account_id
      where b.id = w.name::uuid and (w.account is null or a.name = w.account))
    else exists (
      select from (
        select j.account_id, j.topic from penstock.job j where j.id = w.name::uuid
        union all
        select f.account_id, f.topic from penstock.finished f where f.id = w.name::uuid
      ) o left join penstock.account a on a.id = o.account_id
      where (w.account is null or a.name = w.account) and (w.topic is null or o.topic = w.topic)
    ) end
  from unnest(p_kinds, p_names, p_accounts, p_topics) with ordinality
    w (kind, name, account, topic, n)
$$;

-- Those of these keys that are not valid any more.
create or replace function penstock.find_dead_keys(p_ids text[]) returns setof text
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select w.id from unnest(p_ids) w (id)
  left join penstock.api_key k on k.id = w.id
  where k.id is null or k.revoked_at is not null or k.expires_at <= penstock.clock()
$$;

-- Those of these jobs whose version has changed; a version of null: the job is not live any more.
create or replace function penstock.poll_jobs(p_ids uuid[], p_versions integer[])
returns table (id uuid, version integer)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
  set enable_mergejoin = off set jit = off
as $$
begin
  return query
  select w.id, j.version from unnest(p_ids, p_versions) w (id, version)
  left join penstock.job j on j.id = w.id
  where j.version is distinct from w.version;
end
$$;

-- How many of an account's newest jobs are read to find those of a topic.
create or replace function penstock._scanned_jobs() returns integer
language sql immutable parallel safe
as $$ select 20000 $$;

-- Those of these scopes whose print has changed: their newest live jobs with their versions, and
-- their newest finished jobs, of those submitted within p_margin. A print is a hash that shows
-- whether anything has changed since the last poll; that of an account covers its balance and plan.
create or replace function penstock.poll_scopes(
  p_topics text[], p_accounts text[], p_prints bigint[], p_margin interval, p_most integer
) returns table (n bigint, print bigint, ids uuid[], versions integer[], finished uuid[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
  set enable_mergejoin = off set jit = off
as $$
declare
  -- In steps of 30 seconds: otherwise every job that leaves the margin would change a print.
  v_since uuid := penstock.id_floor(
    date_bin('30 seconds', penstock.clock() - p_margin, '2020-01-01 00:00:00+00'));
  -- The partitions of the coming days are empty, and reading them would be most of the cost.
  v_until uuid := penstock.id_floor(penstock.clock() + interval '1 hour');
begin
  return query
  with scope as materialized (
    select s.n, s.topic, s.print, s.account is null as open, a.id as account_id,
      case when s.topic is null then hashint8extended(a.balance, 1)
        # hashtextextended(coalesce(a.plan, ''), 2) else 0 end as own
    from unnest(p_topics, p_accounts, p_prints) with ordinality s (topic, account, print, n)
    left join penstock.account a on a.name = s.account
  )
  select s.n, l.print # e.print # coalesce(s.own, 0), l.ids, l.versions, e.ids
  from scope s
  cross join lateral (
    select coalesce(bit_xor(uuid_hash_extended(f.id, f.version)), 0) as print,
      array_agg(f.id) as ids, array_agg(f.version) as versions
    from (
      (select j.id, j.version from penstock.job j
       where s.open and j.topic = s.topic order by j.id desc limit p_most)
      union all
      (select r.id, r.version from (
         select j.id, j.version, j.topic from penstock.job j
         where not s.open and j.account_id = s.account_id and j.account_id <> 0
         order by j.id desc limit penstock._scanned_jobs()
       ) r
       where s.topic is null or r.topic = s.topic limit p_most)
    ) f
  ) l
  cross join lateral (
    select coalesce(bit_xor(uuid_hash_extended(f.id, -1)), 0) as print, array_agg(f.id) as ids
    from (
      (select h.id from penstock.finished h
       where s.open and h.topic = s.topic and h.id >= v_since and h.id < v_until
       order by h.id desc limit p_most)
      union all
      (select r.id from (
         select h.id, h.topic from penstock.finished h
         where not s.open and h.account_id = s.account_id and h.account_id <> 0
           and h.id >= v_since and h.id < v_until
         order by h.id desc limit penstock._scanned_jobs()
       ) r
       where s.topic is null or r.topic = s.topic limit p_most)
    ) f
  ) e
  where s.print is null or s.print <> l.print # e.print # coalesce(s.own, 0);
end
$$;

-- Running and awaiting jobs in scopes that have more live jobs than poll_scopes returns.
create or replace function penstock.poll_started(p_topics text[], p_accounts text[])
returns table (n bigint, id uuid, version integer)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
begin
  return query
  select s.n, j.id, j.version
  from penstock.job j join penstock.account a on a.id = j.account_id
  join unnest(p_topics, p_accounts) with ordinality s (topic, account, n)
    on (s.topic is null or s.topic = j.topic) and (s.account is null or s.account = a.name)
  where j.deadline_at is not null;
end
$$;

-- The jobs of each of these scopes that finished within p_since, found among its newest jobs.
-- `more`: there may be others among older jobs, and a client should read its list again.
create or replace function penstock.find_recently_finished(
  p_topics text[], p_accounts text[], p_since interval, p_most integer
) returns table (n bigint, ids uuid[], more boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
  set enable_mergejoin = off set jit = off
as $$
declare
  v_since timestamptz := penstock.clock() - p_since;
  -- A job older than all of these that finishes only now was delayed by days.
  v_day uuid := penstock.id_floor(penstock.clock() - interval '1 day');
  v_scanned integer := p_most * 5;
begin
  return query
  select s.n, array_agg(f.id) filter (where f.finished_at >= v_since),
    count(*) >= v_scanned and min(f.id::text)::uuid > v_day
  from unnest(p_topics, p_accounts) with ordinality s (topic, account, n)
  left join penstock.account a on a.name = s.account
  cross join lateral (
    (select h.id, h.finished_at from penstock.finished h
     where s.account is null and h.topic = s.topic order by h.id desc limit v_scanned)
    union all
    (select r.id, r.finished_at from (
       select h.id, h.finished_at, h.topic from penstock.finished h
       where s.account is not null and h.account_id = a.id and h.account_id <> 0
       order by h.id desc limit penstock._scanned_jobs()
     ) r
     where s.topic is null or r.topic = s.topic limit v_scanned)
  ) f
  group by s.n;
end
$$;

-- Many jobs as read_job returns them; missing ones are left out. The first p_positions have a
-- position and an ETA. One job less is counted than in read_job: deeper than that, and before
-- upkeep has taken a snapshot, there is no position. `mark`: values that change with time alone,
-- without a new version. p_public: as customers see them.
create or replace function penstock.read_jobs(
  p_ids uuid[], p_positions integer, p_public boolean default false
) returns table (
  id uuid, version integer, status text, attempt integer, mark text, eta_seconds double precision,
  job text
)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select r.id, (r.job -> 'version')::integer, r.job ->> 'status', (r.job -> 'attempt')::integer,
    concat_ws('|', r.job ->> 'position', r.job ->> 'waiting_for', r.job ->> 'staleness'),
    (r.job ->> 'eta_seconds')::double precision,
    (case when p_public then penstock._public_job(r.job) else r.job end)::text
  from (
    select u.id, penstock._read_job(u.id,
      case when u.n <= p_positions then penstock._counted_positions() - 1 end) as job
    from unnest(p_ids) with ordinality u (id, n)
    where exists (select from penstock.job j where j.id = u.id)
      or exists (select from penstock.finished f where f.id = u.id)
    offset 0
  ) r
$$;

-- The chunks of jobs after a position in each job's stream, p_most of each, in order.
create or replace function penstock.read_chunks_after(
  p_ids uuid[], p_attempts integer[], p_seqs integer[], p_most integer
) returns table (n bigint, attempt integer, seq integer, data text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
  set enable_mergejoin = off set jit = off
as $$
begin
  return query
  select w.n, c.attempt, c.seq, c.data::text
  from unnest(p_ids, p_attempts, p_seqs) with ordinality w (id, attempt, seq, n)
  cross join lateral (
    select k.attempt, k.seq, k.data from penstock.chunk k
    where k.job_id = w.id and (k.attempt, k.seq) > (w.attempt, w.seq)
    order by k.attempt, k.seq limit p_most
  ) c
  order by w.n, c.attempt, c.seq;
end
$$;

-- A print of the live jobs of each batch; in a very large batch, only of its first jobs.
create or replace function penstock.poll_batches(p_ids uuid[])
returns table (id uuid, print bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
  set enable_mergejoin = off set jit = off
as $$
begin
  return query
  select w.id, coalesce(bit_xor(uuid_hash_extended(l.id, l.version)), 0)
  from unnest(p_ids) w (id)
  left join lateral (
    select j.id, j.version from penstock.job j
    where j.batch_id = w.id order by j.id limit penstock._scanned_jobs()
  ) l on true
  group by w.id;
end
$$;

-- Balance, plan and job counts of accounts, for their own pages; jobs are counted up to 10,000.
create or replace function penstock.read_balances(p_names text[])
returns table (name text, account text)
language sql stable security definer set search_path = pg_catalog, pg_temp
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
  select a.name, jsonb_build_object('id', a.name, 'balance', a.balance, 'plan', a.plan,
    'running', c.running, 'queued', c.queued)::text
  from unnest(p_names) w (name) join penstock.account a on a.name = w.name
  cross join lateral (
    select count(*) filter (where l.status in ('running', 'awaiting')) as running,
      count(*) filter (where l.status in ('queued', 'scheduled')) as queued
    from (
      select j.status from penstock.job j
      where j.account_id = a.id and j.account_id <> 0 order by j.id limit 10000
    ) l
  ) c
$$;
