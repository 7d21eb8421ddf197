-- What operators see of circuits, and how they open and close them by hand.

-- Records the alert for operators and notifies workers: idle ones poll, and all log the message.
create or replace function penstock._publish_circuit(
  p_queue text, p_circuit penstock.circuit, p_now timestamptz
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_sentence text := penstock._circuit_sentence(p_queue, p_circuit);
begin
  if p_circuit.state = 'open' and p_circuit.class is distinct from 'rate_limited' then
    insert into penstock.alert (queue_id, class, message, raised_at)
    values (p_circuit.queue_id, coalesce(p_circuit.class, 'operator'), v_sentence, p_now)
    on conflict (queue_id) where cleared_at is null
    do update set class = excluded.class, message = excluded.message;
  else
    update penstock.alert a set cleared_at = p_now
    where a.queue_id = p_circuit.queue_id and a.cleared_at is null;
  end if;
  perform pg_notify('penstock_circuit', jsonb_build_object('queue', p_queue,
    'state', p_circuit.state, 'class', p_circuit.class, 'message', v_sentence)::text);
  if p_circuit.state <> 'open' then
    perform pg_notify('penstock_job', p_queue);
  end if;
end
$$;

-- A share of calls in words.
create or replace function penstock._share_text(p_share double precision) returns text
language sql immutable parallel safe
as $$
  select case when p_share < 0.05 then 'hardly any' when p_share < 0.18 then 'about a tenth'
    when p_share < 0.29 then 'about a quarter' when p_share < 0.42 then 'about a third'
    when p_share < 0.58 then 'about half' when p_share < 0.7 then 'about two thirds'
    when p_share < 0.83 then 'about three quarters' else 'most' end
$$;

-- The state of a circuit, and what an operator has to do. p_limit: the queue's limit of running
-- jobs.
create or replace function penstock._circuit_sentence(
  p_queue text, p_circuit penstock.circuit, p_limit integer default null
) returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
  select case
    when p_circuit.state = 'closed' then format('the provider of queue %s answers again', p_queue)
    when p_circuit.state = 'ramping' and p_circuit.refused >= 0.05
      then format('the provider of queue %s answers, and refuses %s of its calls; at most %s%s run '
      'at once, more with each answer', p_queue, penstock._share_text(p_circuit.refused),
      p_circuit.allowed, coalesce(' of ' || p_limit, ''))
    when p_circuit.state = 'ramping' then format('the provider of queue %s answers again; jobs '
      'start again, in growing numbers', p_queue)
    when p_circuit.class is null then format('queue %s was stopped by hand%s; `penstock circuit '
      'close %s` lets its jobs start again', p_queue, coalesce(': ' || p_circuit.reason, ''),
      p_queue)
    when p_circuit.class = 'auth' then format('the provider refuses the key that queue %s uses; '
      'correct it, restart the workers, then `penstock resume %s`', p_queue, p_queue)
    when p_circuit.class = 'quota' then format('the quota or credit at the provider of queue %s '
      'is used up; raise it, then `penstock resume %s`', p_queue, p_queue)
    when p_circuit.class = 'config' then format('the provider of queue %s does not know the model '
      'or refuses a setting; correct the job kind, restart the workers, then `penstock resume %s`',
      p_queue, p_queue)
    when p_circuit.class = 'rate_limited' then format('the provider of queue %s asks to wait; '
      'its jobs continue automatically after that', p_queue)
    else format('the provider of queue %s is not available (%s%s); jobs wait and continue '
      'automatically', p_queue, p_circuit.class, coalesce(' at ' || p_circuit.address, '')) end
$$;

-- Opens a circuit by hand: no job starts until it is closed by hand. Running jobs go on.
create or replace function penstock.open_circuit(p_name text, p_reason text default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
declare
  v_queue penstock.queue := penstock._find_queue(p_name);
  v_circuit penstock.circuit;
begin
  -- A claim under way has seen it closed: once this has returned, no job starts.
  perform penstock._lock_queue_limits(v_queue.id);
  select * into v_circuit from penstock.circuit c where c.queue_id = v_queue.id for no key update;
  v_circuit := penstock._closed(v_circuit, penstock.clock());
  v_circuit.state := 'open';
  v_circuit.reason := p_reason;
  perform penstock._write_circuit(v_circuit);
  perform penstock._publish_circuit(p_name, v_circuit, penstock.clock());
end
$$;

create or replace function penstock.close_circuit(p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
declare
  v_queue penstock.queue := penstock._find_queue(p_name);
  v_circuit penstock.circuit;
  v_was text;
begin
  select * into v_circuit from penstock.circuit c where c.queue_id = v_queue.id for no key update;
  v_was := v_circuit.state;
  if penstock._is_troubled(v_circuit) then
    v_circuit := penstock._closed(v_circuit, penstock.clock());
    v_circuit.refused := 0;
    perform penstock._write_circuit(v_circuit);
    if v_was <> 'closed' then
      perform penstock._publish_circuit(p_name, v_circuit, penstock.clock());
    end if;
  end if;
end
$$;

-- The alerts that are not cleared, the oldest first.
create or replace function penstock.list_alerts() returns setof jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('queue', q.name, 'class', a.class, 'message', a.message,
    'raised_at', penstock._rfc3339(a.raised_at))
  from penstock.alert a join penstock.queue q on q.id = a.queue_id
  where a.cleared_at is null
  order by a.raised_at
$$;
