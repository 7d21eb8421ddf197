-- Who may start while a circuit is not closed, and when: one job as a probe, then more and more.

-- Seconds until the next probe: 1, 2, 4 ... 60, or what the provider asked for, up to an hour.
-- Where an operator has to act, a quarter of an hour.
create or replace function penstock._probe_wait(p_effect text, p_tries integer, p_after numeric)
returns interval
language sql immutable parallel safe
as $$
  select make_interval(secs => case
    when p_effect = 'stops' then 900
    else greatest(least(60, 2 ^ least(p_tries, 10)), least(coalesce(p_after, 0), 3600)) end)
$$;

-- How many may start now, as far as the circuit goes; p_running: what runs under the gate. The
-- caller has the gate, so nobody else decides this at the same time.
create or replace function penstock._pass_circuit(
  p_queue integer, p_limit integer, p_running integer, p_now timestamptz
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_circuit penstock.circuit;
begin
  select * into v_circuit from penstock.circuit c where c.queue_id = p_queue;
  if v_circuit.state = 'ramping' then
    return least(p_limit, v_circuit.allowed - p_running); -- guard: ramp
  elsif v_circuit.state = 'open' then
    if p_now < v_circuit.next_at -- guard: not before => if false
      or v_circuit.class is null -- guard: by hand
      or exists ( -- guard: one probe
        select from penstock.job j
        where j.id = v_circuit.probe_job and j.attempt = v_circuit.probe_attempt
          and j.status in ('running', 'awaiting'))
    then
      return 0;
    end if;
    return least(p_limit, 1);
  end if;
  return p_limit;
end
$$;

-- Remembers which start is the probe. Nobody else writes the row of an open circuit meanwhile but
-- a finish, which does not touch the probe.
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
    where q.name = any (p_queues) and c.state = 'open' and penstock._is_outage(c.class)
  ),
  due as materialized (
    select c.queue_id from penstock.circuit c
    where c.queue_id in (select a.queue_id from away a where a.address is not null)
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
    and c.reachable <> p_reachable; -- guard: came back
  if found and p_reachable then
    perform pg_notify('penstock_job', p_queue);
  end if;
end
$$;
