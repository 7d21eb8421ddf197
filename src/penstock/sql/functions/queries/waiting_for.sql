-- The reason why a job does not start, as one word. If there are several, it is the first of:
-- paused, no_worker, no_handler, circuit_open, rate_limit, account_limit, queue_limit.

-- Live workers: registered, not stopped or lost, and not silent for longer than their lease.
create or replace function penstock._live_workers(p_now timestamptz)
returns table (
  queues text[], kinds text[], accepting jsonb, lease interval, beat_at timestamptz,
  started_at timestamptz, locks boolean
)
language sql stable parallel safe
as $$
  select w.queues, w.kinds, w.accepting, w.lease, w.beat_at, w.started_at, w.locks
  from penstock.worker w
  where w.cleared_at is null
    and w.lost_at is null and w.stopped_at is null -- guard: not gone
    and w.beat_at + w.lease >= p_now -- guard: beats
$$;

-- alive: some worker serves the queue. handled: one of them has a handler for the kind (null: any).
-- Both by name, so that a submit reads one table only. One row, for FROM: only there Postgres
-- inlines a function that reads tables.
create or replace function penstock._service(p_queue text, p_kind text, p_now timestamptz)
returns table (alive boolean, handled boolean)
language sql stable parallel safe
as $$
  select count(*) > 0,
    coalesce(bool_or(w.kinds is null or p_kind is null or p_kind = any (w.kinds)), false)
  from penstock._live_workers(p_now) w
  where w.queues is null or p_queue = any (w.queues) -- guard: serves
$$;

-- Kinds whose jobs may be in the queue, and whether some live worker starts them.
create or replace function penstock._kinds_of_queue(p_queue integer, p_now timestamptz)
returns table (kind_id integer, name text, served boolean)
language sql stable parallel safe
as $$
  select k.id, k.name, exists (
    select from penstock._live_workers(p_now) w
    where (w.queues is null or q.name = any (w.queues))
      and (w.kinds is null or k.name = any (w.kinds)))
  from penstock.queue_kind qk
  join penstock.queue q on q.id = qk.queue_id join penstock.kind k on k.id = qk.kind_id
  where qk.queue_id = p_queue
$$;

-- Kinds of the queue that can run; all of them if no worker serves any, since then they do not
-- differ.
create or replace function penstock._served_kinds(p_queue integer, p_now timestamptz)
returns integer[]
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select case when bool_or(k.served) then array_agg(k.kind_id) filter (where k.served)
    else array_agg(k.kind_id) end
  from penstock._kinds_of_queue(p_queue, p_now) k
$$;

-- Kinds with queued jobs that no worker of their queue has a handler for, with the number of these
-- jobs, counted up to 1,000. Queues that no worker serves are left out: they have `no_worker`.
create or replace function penstock.list_unhandled() returns setof jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
  select jsonb_build_object('queue', q.name, 'kind', k.name, 'jobs', least(j.jobs, 1000),
    'about', j.jobs > 1000, 'oldest_at', penstock._rfc3339(j.oldest_at))
  from (select penstock.clock() as now) n
  cross join penstock.queue q
  cross join lateral penstock._service(q.name, null, n.now) s
  cross join lateral penstock._kinds_of_queue(q.id, n.now) k
  cross join lateral (
    select count(*) as jobs, min(f.run_at) as oldest_at from (
      select j.run_at from penstock.job j
      where j.queue_id = q.id and j.kind_id = k.kind_id and j.status = 'queued'
      order by j.lane, j.rank limit 1001
    ) f
  ) j
  where s.alive and q.drive = 'worker' and not k.served and j.jobs > 0
  order by q.name, k.name
$$;

-- The reason that stops the whole queue, from these facts: see _stop.
create or replace function penstock._stop_word(
  p_paused boolean, p_alive boolean, p_handled boolean, p_state text, p_class text
) returns text
language sql immutable parallel safe
as $$
  select case
    when p_paused or (p_state = 'open' and p_class in ('auth', 'quota', 'config')) then 'paused'
    when not p_alive then 'no_worker'
    when not p_handled then 'no_handler'
    when p_state = 'open' and p_class = 'rate_limited' then 'rate_limit'
    when p_state = 'open' then 'circuit_open' end
$$;

-- The reason that stops the whole queue, or its jobs of one kind; null: none. While it is stopped,
-- no ETA is known. One row, for FROM.
create or replace function penstock._stop(
  p_queue penstock.queue, p_kind text, p_now timestamptz
) returns setof text
language sql stable parallel safe
as $$
  select penstock._stop_word(p_queue.paused_at is not null, s.alive, s.handled, c.state, c.class)
  from penstock.circuit c cross join penstock._service(p_queue.name, p_kind, p_now) s
  where c.queue_id = p_queue.id
$$;

-- The seconds until the queue's rate allows the p_nth job from now to start; see _pass_gate.
create or replace function penstock._rate_seconds(
  p_queue penstock.queue, p_next_at timestamptz, p_nth bigint, p_now timestamptz
) returns double precision
language sql stable parallel safe
as $$
  select case when p_queue.rate_count is null then 0 else
    greatest(0, date_part('epoch', greatest(p_next_at, p_now) - p_now)
      + (p_nth - p_queue.rate_burst)
        * date_part('epoch', p_queue.rate_period) / p_queue.rate_count) end
$$;

-- Whether the job waits after an attempt that did not succeed; not if its handler asked for the
-- delay.
create or replace function penstock._backs_off(p_job penstock.job) returns boolean
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select p_job.status = 'scheduled' and p_job.attempt > 0 and exists (
    select from penstock.attempt t
    where t.job_id = p_job.id and t.attempt = p_job.attempt
      and t.outcome not in ('snoozed', 'released')) -- guard: not by its wish
$$;

-- The reason why a due job waits. p_stop: from _stop; p_ahead: how many jobs start before it.
create or replace function penstock._waiting_for(
  p_stop text, p_queue penstock.queue, p_gate penstock.gate, p_running integer,
  p_limit integer, p_ahead bigint, p_now timestamptz
) returns text
language sql stable
as $$
  select case
    when p_stop is not null then p_stop
    -- A tolerance of 1e-6 s: what has just returned to the bucket may be taken.
    when penstock._rate_seconds(p_queue, p_gate.rate_next_at, 1, p_now) > 1e-6 then 'rate_limit'
    when p_running >= p_limit then 'account_limit'
    when p_gate.running + coalesce(p_ahead, 0) >= p_queue.concurrency then 'queue_limit' end
$$;
