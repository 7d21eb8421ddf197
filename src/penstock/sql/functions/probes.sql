-- Who may start while a circuit is not closed, and when: one job as a probe, then more and more.

-- Seconds until the next probe: 1, 2, 4 ... 60, or what the provider asked for, up to an hour; that
-- exactly where it only asks to wait. Where an operator has to act, a quarter of an hour.
create or replace function penstock._probe_wait(p_effect text, p_tries integer, p_after numeric)
returns interval
language sql immutable parallel safe
as $$
  select make_interval(secs => case
    when p_effect = 'stops' then 900
    when p_effect = 'pauses' then least(3600, greatest(1, coalesce(p_after, 1)))
    else greatest(least(60, 2 ^ least(p_tries, 10)), least(coalesce(p_after, 0), 3600)) end)
$$;

-- How many may start now, as far as the circuit goes, and whether as its probe. The caller has the
-- gate, so nobody else decides this at the same time.
create or replace function penstock._pass_circuit(
  p_queue integer, p_limit integer, p_now timestamptz,
  out free integer, out probe boolean
)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_circuit penstock.circuit;
begin
  select * into v_circuit from penstock.circuit c where c.queue_id = p_queue;
  if v_circuit.state = 'open' and v_circuit.class = 'rate_limited'
    and v_circuit.next_at <= p_now -- guard: waited
  then
    update penstock.circuit c set state = 'ramping', allowed = c.resume, changed_at = p_now
    where c.queue_id = p_queue and c.state = 'open' and c.class = 'rate_limited'
    returning * into v_circuit;
  end if;
  free := p_limit;
  probe := v_circuit.state = 'open';
  if v_circuit.state = 'ramping' then
    -- What began before says nothing any more, however long it hangs.
    select least(p_limit, v_circuit.allowed - count(*)) into free -- guard: ramp
    from penstock.job j
    where j.deadline_at is not null and j.queue_id = p_queue
      and j.started_at >= v_circuit.changed_at;
  elsif v_circuit.state = 'open' then
    if p_now < v_circuit.next_at -- guard: not before => if false
      or v_circuit.class is null -- guard: by hand
      or exists ( -- guard: one probe
        select from penstock.job j
        where j.id = v_circuit.probe_job and j.attempt = v_circuit.probe_attempt
          and j.status in ('running', 'awaiting'))
    then
      free := 0;
    else
      free := least(p_limit, 1);
    end if;
  end if;
end
$$;

-- Remembers which start is the probe.
create or replace function penstock._begin_probe(p_queue integer, p_job uuid) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  update penstock.circuit c set probe_job = j.id, probe_attempt = j.attempt
  from penstock.job j
  where c.queue_id = p_queue and c.state = 'open' and j.id = p_job
$$;

-- Providers that are away; with an address where who asks is to look at it: each once a second,
-- whoever asks first. A worker asks for its own queues only: another's may have addresses that mean
-- nothing to it.
create or replace function penstock.due_looks(p_queues text[])
returns table (queue text, address text)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  with away as materialized (
    select c.queue_id, q.name, c.address, c.looked_at
    from penstock.circuit c join penstock.queue q on q.id = c.queue_id
    where q.name = any (p_queues) and c.state = 'open' and c.address is not null
      and penstock._is_outage(c.class)
      and c.class <> 'overloaded' -- takes connections all the time
  ),
  due as materialized (
    select c.queue_id from penstock.circuit c
    where c.queue_id in (select a.queue_id from away a)
      and c.looked_at <= penstock.clock() - interval '1 second' -- guard: once a second
    order by c.queue_id for no key update skip locked
  ),
  looked as (
    update penstock.circuit c set looked_at = penstock.clock()
    from due d where c.queue_id = d.queue_id
    returning c.queue_id
  )
  select a.name, case when l.queue_id is not null then a.address end
  from away a left join looked l on l.queue_id = a.queue_id
$$;

-- A connection was taken, or not. When a provider comes back, the next probe need not wait for its
-- turn; one that takes connections and answers nothing gets no more probes than before.
create or replace function penstock.report_look(p_queue text, p_reachable boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue penstock.queue := penstock._find_queue(p_queue);
begin
  update penstock.circuit c set reachable = p_reachable,
    next_at = case when p_reachable
      then least(c.next_at, penstock.clock()) else c.next_at end
  where c.queue_id = v_queue.id and c.state = 'open' and penstock._is_outage(c.class)
    and c.class <> 'overloaded' -- guard: may be gone
    and c.reachable <> p_reachable; -- guard: came back
  if found and p_reachable then
    perform penstock._unbench(v_queue.id, penstock.clock(), null);
    perform pg_notify('penstock_job', p_queue);
  end if;
end
$$;

-- A probe over its time, or stuck, met a provider that takes calls and does not answer: as if it
-- had been broken off, and not the job's failure alone.
create or replace function penstock._of_probes(
  p_jobs uuid[], p_attempts integer[], p_outcomes text[], p_errors jsonb[],
  out outcomes text[], out errors jsonb[]
)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select
    array_agg(case when c.queue_id is not null then 'provisional' else t.outcome end order by t.o),
    array_agg(case when c.queue_id is not null
      then coalesce(t.error, '{"message": "over its time"}')
        || '{"class": "stalled", "circuit": {"effect": "counts"}}'
      else t.error end order by t.o)
  from unnest(p_jobs, p_attempts, p_outcomes, p_errors) with ordinality
    t (id, attempt, outcome, error, o)
  left join penstock.circuit c on c.state = 'open' and c.probe_job = t.id
    and c.probe_attempt = t.attempt -- guard: this start
    and t.outcome in ('timed_out', 'stuck') -- guard: no answer
$$;
