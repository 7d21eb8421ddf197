-- The ETA: the time until a job probably starts (not until it finishes). The running jobs have to
-- finish, and the jobs ahead of it have to run, on the slots that exist. The account's own limit,
-- the queue's rate and the time at which the job is due count, too. Null if it is not known: no job
-- of the queue has finished yet, the queue is paused, no worker is alive, or the provider is
-- unavailable.

-- The seconds until a job with p_ahead jobs before it gets a slot. p_left: the seconds that the
-- running jobs still need, smallest first; the other p_slots are free now.
create or replace function penstock._slot_seconds(
  p_left double precision[], p_slots integer, p_ahead bigint, p_each double precision
) returns double precision
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_running integer := coalesce(cardinality(p_left), 0);
  -- The job gets slot v_turn after v_turns full rounds of all slots.
  v_turn integer := p_ahead % p_slots;
  v_turns bigint := p_ahead / p_slots;
  v_left double precision := 0;
begin
  if v_turn >= p_slots - v_running then
    -- After a limit was lowered, more jobs run than there are slots: the first to finish free none.
    v_left := p_left[v_turn + 1 + v_running - p_slots];
  end if;
  return v_left + case when v_turns = 0 then 0 else v_turns * p_each end;
end
$$;

create or replace function penstock._eta_seconds(
  p_job penstock.job, p_queue penstock.queue, p_gate penstock.gate, p_account_limit integer,
  p_ahead bigint, p_work double precision, p_own_ahead bigint, p_own_work double precision,
  p_typical double precision, p_now timestamptz
) returns double precision
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_left double precision[];
  v_own_left double precision[];
  v_running integer;
  v_slots integer;
  v_seconds double precision;
  v_own_seconds double precision := 0;
begin
  -- A job that runs longer than usual may finish at any moment, or not: assume a fifth of the
  -- usual.
  select array_agg(r.seconds order by r.seconds) filter (where r.queue_id = p_job.queue_id),
    array_agg(r.seconds order by r.seconds) filter (where r.account_id = p_job.lane)
  into v_left, v_own_left
  from (
    select j.queue_id, j.account_id, greatest(coalesce(p.seconds, p_typical) * 0.2,
      coalesce(p.seconds, p_typical) - date_part('epoch', p_now - j.started_at)) as seconds
    from penstock.job j left join penstock.pace p on p.kind_id = j.kind_id
    where j.deadline_at is not null
      and (j.queue_id = p_job.queue_id or j.account_id = p_job.lane)
    limit 1000
  ) r;
  v_running := coalesce(cardinality(v_left), 0);
  -- The slots of a queue: its limit, unless fewer jobs run although others wait, as with a small
  -- worker. Without a limit, the measured number. While the circuit is ramping, the number that it
  -- allows.
  select least(p_queue.concurrency, c.allowed, case
      when p_queue.concurrency is null or f.parallel is not null
        then greatest(1, v_running, round(f.parallel)::integer) end)
  into v_slots
  from penstock.circuit c
  left join penstock.flow f on f.queue_id = c.queue_id
    and f.seen_at > p_now - interval '1 minute'
  where c.queue_id = p_queue.id;
  if p_queue.concurrency is null and p_ahead = 0
    and greatest(p_job.created_at, p_job.run_at) > p_now - interval '2 seconds'
  then
    -- The next claim takes the job. If it had waited for longer, there would be no free slot.
    v_seconds := 0;
  else
    v_seconds := penstock._slot_seconds(v_left, v_slots, p_ahead,
      p_work / nullif(p_ahead, 0));
  end if;
  if p_account_limit is not null then
    v_own_seconds := penstock._slot_seconds(v_own_left, p_account_limit, p_own_ahead,
      p_own_work / nullif(p_own_ahead, 0));
  end if;
  if v_seconds is null or v_own_seconds is null then
    return null;
  end if;
  return round(greatest(v_seconds, v_own_seconds,
    penstock._rate_seconds(p_queue, p_gate.rate_next_at, p_ahead + 1, p_now),
    date_part('epoch', p_job.run_at - p_now))::numeric, 1);
end
$$;

-- Position, ETA and reason of a live job; p_most: how many jobs may be counted.
create or replace function penstock._waiting(
  p_job penstock.job, p_most integer,
  out queue_position bigint, out eta_seconds double precision, out waiting_for text
)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz := penstock.clock();
  v_backs_off boolean := false;
  v_kinds integer[];
  v_facts record;
  v_ahead record;
begin
  if p_job.status in ('running', 'awaiting') then
    waiting_for := case when p_job.status = 'awaiting' then 'callback' end;
    return;
  elsif p_job.failure_pending then
    waiting_for := 'backoff'; -- there may be no further attempt
    return;
  elsif p_job.status = 'scheduled' then
    v_backs_off := penstock._backs_off(p_job);
    if p_job.run_at > v_now and not v_backs_off then
      return; -- its caller or handler wanted the delay
    end if;
  end if;
  v_kinds := penstock._served_kinds(p_job.queue_id, v_now);
  if p_job.kind_id <> all (v_kinds) then
    v_kinds := v_kinds || p_job.kind_id;
  end if;
  select q as queue, g as gate, a.running, a.concurrency, s.stop, t.seconds as typical, t.mixed,
    exists (
      select from penstock.lane l
      where l.queue_id = q.id and l.kind_id = any (v_kinds) and l.open and l.waiting > 0) as laned
  into v_facts
  from penstock.queue q join penstock.gate g on g.queue_id = q.id
  cross join lateral penstock._typical_pace(q.id) t
  join penstock.kind k on k.id = p_job.kind_id
  cross join lateral penstock._stop(q, k.name, v_now) s (stop)
  left join penstock.account a on a.id = p_job.lane
  where q.id = p_job.queue_id;
  v_ahead := penstock._jobs_ahead(p_job, v_kinds, (v_facts.queue).ordering, v_facts.laned, p_most,
    v_facts.typical, v_facts.mixed and v_facts.stop is null);
  if p_job.status = 'queued' or v_backs_off then
    queue_position := v_ahead.jobs + 1;
  end if;
  -- A job that backs off during an outage waits for the end of the outage.
  waiting_for := case when p_job.run_at > v_now and v_backs_off
      and v_facts.stop is distinct from 'circuit_open' then 'backoff'
    else penstock._waiting_for(v_facts.stop, v_facts.queue, v_facts.gate, v_facts.running,
      v_facts.concurrency, v_ahead.jobs, v_now) end;
  if v_facts.stop is null and v_ahead.jobs is not null then -- guard: not in an outage
    eta_seconds := penstock._eta_seconds(p_job, v_facts.queue, v_facts.gate, v_facts.concurrency,
      v_ahead.jobs, v_ahead.work, v_ahead.own_jobs, v_ahead.own_work, v_facts.typical, v_now);
  end if;
end
$$;

-- The same for a job that was just submitted, if the case is simple: the job is in no lane, has few
-- jobs before it, and either nothing can start now or the next claim takes it. This takes a third
-- of the time. `simple`: whether the values hold.
create or replace function penstock._waiting_if_simple(
  p_job uuid, p_now timestamptz,
  out simple boolean, out queue_position bigint, out eta_seconds double precision,
  out waiting_for text
)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
  v_most constant integer := penstock._counted_at_submit();
  v_facts record;
begin
  select penstock._stop_word(q.paused_at is not null, s.alive, s.handled, c.state, c.class) as stop,
    q.rate_count is null and (q.concurrency is null or g.running < q.concurrency)
      and c.state = 'closed' as free,
    j.lane = -1 and j.status = 'queued' and not exists (
      select from penstock.lane l where l.queue_id = q.id and l.open and l.waiting > 0) as plain,
    (select count(*) from (
       select from unnest(penstock._served_kinds(j.queue_id, p_now)) u (id) cross join lateral (
         select from penstock.job o
         where o.queue_id = j.queue_id and o.kind_id = u.id and o.lane = -1
           and o.status = 'queued' and o.rank < j.rank
         limit v_most + 1) n
       limit v_most + 1) f) as ahead,
    not exists (
      select from penstock.snapshot s where s.queue_id = q.id and s.lane = -2) as uncounted
  into v_facts
  from penstock.job j join penstock.queue q on q.id = j.queue_id
  join penstock.gate g on g.queue_id = q.id join penstock.circuit c on c.queue_id = q.id
  join penstock.kind k on k.id = j.kind_id
  cross join lateral penstock._service(q.name, k.name, p_now) s
  where j.id = p_job;
  simple := v_facts.plain and v_facts.stop is distinct from 'no_handler'
    and case when v_facts.ahead <= v_most
    then v_facts.stop is not null or (v_facts.free and v_facts.ahead = 0)
    else v_facts.stop is not null and v_facts.uncounted end;
  queue_position := case when v_facts.ahead <= v_most then v_facts.ahead + 1 end;
  waiting_for := v_facts.stop;
  eta_seconds := case when v_facts.stop is null then 0 end;
end
$$;
