-- Which jobs may start while a circuit is not closed, and when: one as a probe, then growing
-- numbers.

-- The time until the next probe: 1, 2, 4 ... 60 seconds, or what the provider asked for, up to an
-- hour; exactly that if it only asks to wait. If an operator has to act, a quarter of an hour; less
-- as long as only one account has met the failure (not p_shared): only its key may be wrong.
create or replace function penstock._probe_wait(
  p_effect text, p_tries integer, p_retry_after interval, p_shared boolean default true
) returns interval
language sql immutable parallel safe
as $$
  select case
    when p_effect = 'stops' and p_shared then interval '15 minutes'
    when p_effect = 'stops' then make_interval(secs => least(900, 2 ^ least(p_tries, 10)))
    when p_effect = 'pauses'
      then least(interval '1 hour', greatest(interval '1 second', p_retry_after))
    else greatest(make_interval(secs => least(60, 2 ^ least(p_tries, 10))),
      least(coalesce(p_retry_after, '0'), interval '1 hour')) end
$$;

-- How long a probe may run without an answer before another one starts beside it: 10, 20 ... 60 s.
create or replace function penstock._patience(p_tries integer) returns interval
language sql immutable parallel safe
as $$ select make_interval(secs => least(60, 10 * (least(p_tries, 10) + 1))) $$;

-- How many jobs the circuit lets start now, and whether as its probe. The caller holds the gate, so
-- no other transaction decides this at the same time.
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
    -- Calls that began before the ramp say nothing any more, however long they hang; and calls that
    -- hang now must not keep others from starting.
    select least(p_limit, v_circuit.allowed - count(*)) into free -- guard: ramp
    from penstock.job j
    where j.deadline_at is not null and j.queue_id = p_queue
      and j.started_at >= v_circuit.changed_at
      and j.started_at > p_now - penstock._patience(0); -- guard: hangs in a ramp
  elsif v_circuit.state = 'open' then
    if p_now < v_circuit.next_at -- guard: not before
      or v_circuit.class is null -- guard: by hand
      or exists ( -- guard: one probe
        select from penstock.job j
        where j.id = v_circuit.probe_job and j.attempt = v_circuit.probe_attempt
          and j.status in ('running', 'awaiting')
          and j.started_at > p_now - penstock._patience(v_circuit.tries)) -- guard: hangs
    then
      free := 0;
    else
      free := least(p_limit, 1);
    end if;
  end if;
end
$$;

-- Records which attempt is the probe. If the last probe still runs, it had no answer. The next
-- probe is of another account than this one; if one account has all the failures, than that
-- account.
create or replace function penstock._begin_probe(p_queue integer, p_job uuid) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  update penstock.circuit c set probe_job = j.id, probe_attempt = j.attempt,
    suspect = case when c.row_shared or c.row_account is null or c.row_account = 0
      then nullif(j.account_id, 0) else c.row_account end,
    tries = c.tries + exists (
      select from penstock.job b
      where b.id = c.probe_job and b.attempt = c.probe_attempt
        and b.status in ('running', 'awaiting'))::integer
  from penstock.job j
  where c.queue_id = p_queue and c.state = 'open' and j.id = p_job
$$;

-- The next job of another account than the one that the circuit suspects. null: no account is
-- suspected, or no such job is among the first ten thousand.
create or replace function penstock._other_probe(p_queue integer, p_kinds integer[]) returns uuid
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_suspect bigint;
begin
  select c.suspect into v_suspect from penstock.circuit c where c.queue_id = p_queue;
  if v_suspect is null then
    return null;
  end if;
  return (
    select n.id
    from unnest(p_kinds) k (id)
    cross join lateral (
      (select f.id, f.rank from (
        select j.id, j.rank, j.account_id from penstock.job j
        where j.queue_id = p_queue and j.kind_id = k.id and j.lane = -1 and j.status = 'queued'
        order by j.rank limit 10000
      ) f
      where f.account_id <> v_suspect -- guard: another account
      order by f.rank limit 1)
      union all
      (select j.id, j.rank from (
        select l.account_id from penstock.lane l
        where l.queue_id = p_queue and l.kind_id = k.id and l.open and l.waiting > 0
          and l.account_id <> v_suspect -- guard: another lane
        order by l.head limit 1
      ) l
      cross join lateral (
        select j.id, j.rank from penstock.job j
        where j.queue_id = p_queue and j.kind_id = k.id and j.lane = l.account_id
          and j.status = 'queued'
        order by j.rank limit 1
      ) j)
    ) n
    order by n.rank limit 1);
end
$$;

-- The unavailable providers of these queues. A row with an address asks the caller to check it:
-- each is given out once a second, to the first caller. A worker asks for its own queues only,
-- because the addresses of others may mean nothing on its network.
create or replace function penstock.due_checks(p_queues text[])
returns table (queue text, address text)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  with unavailable as materialized (
    select c.queue_id, q.name, c.address, c.checked_at
    from penstock.circuit c join penstock.queue q on q.id = c.queue_id
    where q.name = any (p_queues) and c.state = 'open' and c.address is not null
      and penstock._is_outage(c.class)
      and c.class <> 'overloaded' -- accepts connections all the time
  ),
  due as materialized (
    select c.queue_id from penstock.circuit c
    where c.queue_id in (select a.queue_id from unavailable a)
      and c.checked_at <= penstock.clock() - interval '1 second' -- guard: once a second
    order by c.queue_id for no key update skip locked
  ),
  checked as (
    update penstock.circuit c set checked_at = penstock.clock()
    from due d where c.queue_id = d.queue_id
    returning c.queue_id
  )
  select a.name, case when l.queue_id is not null then a.address end
  from unavailable a left join checked l on l.queue_id = a.queue_id
$$;

-- Records whether a connection was accepted. When a provider comes back, the next probe may start
-- at once; a provider that accepts connections but answers nothing gets no more probes than before.
create or replace function penstock.report_check(p_queue text, p_reachable boolean) returns void
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
    perform penstock._release_deferred_probes(v_queue.id, penstock.clock(), null);
    perform pg_notify('penstock_job', p_queue);
  end if;
end
$$;

-- A probe that timed out, or got stuck, met a provider that accepts calls and does not answer: it
-- counts as an interrupted call, and not only as a failure of the job.
create or replace function penstock._of_probes(
  p_jobs uuid[], p_attempts integer[], p_outcomes text[], p_errors jsonb[], p_effects text[],
  out outcomes text[], out errors jsonb[], out effects text[]
)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select
    array_agg(case when c.queue_id is not null then 'provisional' else t.outcome end order by t.o),
    array_agg(case when c.queue_id is not null
      then coalesce(t.error, '{"message": "over its time"}') || '{"class": "stalled"}'
      else t.error end order by t.o),
    array_agg(case when c.queue_id is not null then 'counts' else t.effect end order by t.o)
  from unnest(p_jobs, p_attempts, p_outcomes, p_errors, p_effects) with ordinality
    t (id, attempt, outcome, error, effect, o)
  left join penstock.job j on j.id = t.id
    and j.attempt = t.attempt -- guard: this attempt
    and t.outcome in ('timed_out', 'stuck') -- guard: no answer
  left join penstock.circuit c on c.queue_id = j.queue_id and c.state = 'open'
    and c.class <> 'rate_limited'
    and j.started_at > c.changed_at -- guard: a probe
$$;
