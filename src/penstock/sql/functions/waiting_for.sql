-- What keeps a job from starting, in one word; when several things do, the first of: paused,
-- no_worker, circuit_open, rate_limit, account_limit, queue_limit.

-- Whether there is a worker that beats. One row, for FROM: only there Postgres inlines a function
-- that looks into tables, and calling it took 15 us (2026-11).
create or replace function penstock._anyone_alive(p_now timestamptz) returns setof boolean
language sql stable parallel safe
as $$
  select exists (
    select from penstock.worker w
    where w.cleared_at is null
      and w.lost_at is null and w.stopped_at is null -- guard: not gone
      and w.beat_at + w.lease >= p_now) -- guard: beats => )
$$;

-- What stops the whole queue, of what is known about it: see _stopped_by.
create or replace function penstock._stop_word(
  p_paused boolean, p_alive boolean, p_state text, p_class text
) returns text
language sql immutable parallel safe
as $$
  select case
    when p_paused or (p_state = 'open' and p_class in ('auth', 'quota', 'config')) then 'paused'
    when not p_alive then 'no_worker'
    when p_state = 'open' and p_class = 'rate_limited' then 'rate_limit'
    when p_state = 'open' then 'circuit_open' end
$$;

-- What stops the whole queue: nothing is known then about when a job will start. One row, for FROM.
create or replace function penstock._stop(
  p_queue integer, p_paused_at timestamptz, p_now timestamptz
) returns setof text
language sql stable parallel safe
as $$
  select penstock._stop_word(p_paused_at is not null, a.alive, c.state, c.class)
  from penstock.circuit c cross join penstock._anyone_alive(p_now) a (alive)
  where c.queue_id = p_queue
$$;

-- The wait until the queue's rate allows start number p_nth from now; see _pass_gate.
create or replace function penstock._rate_seconds(
  p_queue penstock.queue, p_next_at timestamptz, p_nth bigint, p_now timestamptz
) returns double precision
language sql stable parallel safe
as $$
  select case when p_queue.rate_count is null then 0 else
    greatest(0, greatest(0, date_part('epoch', p_next_at - p_now))
      + (p_nth - p_queue.rate_burst)
        * date_part('epoch', p_queue.rate_period) / p_queue.rate_count) end
$$;

-- Whether a start of the job ended so that it has to wait before the next: not by its own wish.
create or replace function penstock._backs_off(p_job penstock.job) returns boolean
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select p_job.status = 'scheduled' and p_job.attempt > 0 and exists (
    select from penstock.attempt t
    where t.job_id = p_job.id and t.attempt = p_job.attempt
      and t.outcome not in ('snoozed', 'released')) -- guard: not by its wish
$$;

-- Of a job that is due. p_stop: as _stop says; p_ahead: how many will start before it.
create or replace function penstock._waiting_for(
  p_stop text, p_queue penstock.queue, p_gate penstock.gate, p_running integer,
  p_limit integer, p_ahead bigint, p_now timestamptz
) returns text
language sql stable
as $$
  select case
    when p_stop is not null then p_stop
    -- A rate of 1e-6 s less: what has just come back into the bucket may be taken.
    when penstock._rate_seconds(p_queue, p_gate.rate_next_at, 1, p_now) > 1e-6 then 'rate_limit'
    when p_running >= p_limit then 'account_limit'
    when p_gate.running + coalesce(p_ahead, 0) >= p_queue.concurrency then 'queue_limit' end
$$;
