-- The next state of a circuit after one more outcome: its state, how many jobs may run, when to
-- probe next. All functions are pure; circuit.sql has the diagram, and calls them with the row
-- locked.

-- Whether so many calls are refused that a failure says nothing about its job.
create or replace function penstock._is_half_up(p_refused double precision) returns boolean
language sql immutable parallel safe
as $$ select p_refused >= 0.25 $$;

-- The circuit after an answer. Pure.
create or replace function penstock._after_answer(
  p_circuit penstock.circuit, p_started_at timestamptz, p_full integer, p_now timestamptz
) returns penstock.circuit
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_next penstock.circuit := penstock._without_row(p_circuit);
begin
  -- In the share of refused calls, each call has a weight of an eighth.
  v_next.refused := case when v_next.refused >= 0.01 then v_next.refused * 7 / 8 else 0 end;
  v_next.answered_at := p_now;
  v_next.answered_start := greatest(p_circuit.answered_start, p_started_at);
  if v_next.state = 'open'
    and v_next.class <> 'rate_limited'
    and p_started_at > v_next.changed_at -- guard: by its probe
  then
    v_next.state := 'ramping';
    -- A provider that still answers goes on with half of what ran; one that was down with one job.
    v_next.allowed := case when penstock._answered_lately(p_circuit, p_now)
      then v_next.resume else 1 end;
    v_next.changed_at := p_now;
    v_next.suspect := null;
  elsif v_next.state = 'ramping' then
    v_next.allowed := v_next.allowed + 1;
    -- If it opens again, the first probe comes soon.
    v_next.tries := greatest(0, least(v_next.tries, 6) - 1);
  end if;
  -- After a quiet minute a ramp closes, so that a queue with few jobs does not ramp for ever.
  if v_next.state = 'ramping'
    and (v_next.allowed >= p_full or penstock._is_steady(v_next, p_now))
  then
    v_next := penstock._closed(v_next, p_now);
  end if;
  return v_next;
end
$$;

-- Whether the provider has answered within the last 30 seconds.
create or replace function penstock._answered_lately(
  p_circuit penstock.circuit, p_now timestamptz
) returns boolean
language sql immutable
as $$ select p_circuit.answered_at > p_now - interval '30 seconds' $$;

-- The number of failed probes after one more. It stays low, so that probes stay frequent, as long
-- as the provider answered a moment ago, or if all failures are of one account.
create or replace function penstock._tries_after(p_circuit penstock.circuit, p_now timestamptz)
returns integer
language sql immutable set search_path = pg_catalog, pg_temp
as $$
  select case when not penstock._answered_lately(p_circuit, p_now) then p_circuit.tries + 1
    when p_circuit.row_shared then least(2, p_circuit.tries + 1) else 0 end
$$;

-- Whether a ramp is over although too few jobs started to reach its top.
create or replace function penstock._is_steady(p_circuit penstock.circuit, p_now timestamptz)
returns boolean
language sql immutable set search_path = pg_catalog, pg_temp
as $$
  select p_circuit.changed_at <= p_now - interval '1 minute' -- guard: its minute
    and p_circuit.eased_at <= p_now - interval '1 minute' -- guard: quiet
$$;

-- The circuit after one more outcome. Pure; p_running: how many jobs ran in its queue.
create or replace function penstock._circuit_after(
  p_circuit penstock.circuit, p_job uuid, p_attempt integer, p_started_at timestamptz,
  p_outcome text, p_class text, p_effect text, p_retry_after interval, p_address text,
  p_full integer, p_running integer, p_now timestamptz, p_account bigint
) returns penstock.circuit
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_next penstock.circuit := p_circuit;
begin
  if p_effect is null or p_effect = 'none' then
    if p_outcome not in ('succeeded', 'snoozed') and coalesce(p_class, '') not in (
      'invalid_request', 'refused', 'input_too_long', 'input_truncated', 'bad_output')
    then
      return v_next; -- says nothing about the provider
    end if;
    return penstock._after_answer(p_circuit, p_started_at, p_full, p_now);
  end if;
  if v_next.state = 'ramping'
    and p_started_at < v_next.changed_at -- guard: of now
  then
    return v_next; -- it met the outage that is over
  end if;
  if p_effect <> 'pauses' then
    v_next.refused := v_next.refused + (1 - v_next.refused) / 8;
    if p_started_at < v_next.answered_start then -- guard: overtaken
      return v_next;
    end if;
  end if;

  v_next.address := coalesce(p_address, v_next.address);
  if v_next.row_trouble is distinct from
    penstock._trouble(p_class) -- guard: of one sort
  then
    v_next := penstock._without_row(v_next);
    v_next.row_trouble := penstock._trouble(p_class);
  end if;
  if v_next.in_row = 0 then
    v_next.row_refused := p_circuit.refused;
    v_next.row_account := p_account;
  end if;
  v_next.row_mixed := v_next.row_mixed or coalesce(v_next.row_job <> p_job, false);
  v_next.row_job := coalesce(v_next.row_job, p_job);
  v_next.row_shared := v_next.row_shared or v_next.row_account is distinct from p_account
    or (p_account = 0 and v_next.row_mixed);
  v_next.in_row := v_next.in_row + 1;
  if v_next.state = 'open' then
    if v_next.class is null then -- opened by an operator: outcomes do not change it
      return v_next;
    end if;
    if p_job = v_next.probe_job and p_attempt = v_next.probe_attempt then
      v_next.tries := penstock._tries_after(v_next, p_now);
      v_next.class := p_class;
      v_next.next_at := p_now
        + penstock._probe_wait(p_effect, v_next.tries, p_retry_after, v_next.row_shared);
    elsif p_effect = 'pauses' then
      -- Calls that were under way may have been asked to wait longer than the first.
      v_next.next_at := greatest(v_next.next_at,
        p_now + penstock._probe_wait(p_effect, 0, p_retry_after));
    end if;
    return v_next;
  end if;
  if v_next.state = 'ramping'
    and p_started_at > v_next.eased_at -- guard: once a round
  then
    v_next.allowed := greatest(1, v_next.allowed * 7 / 8);
    v_next.eased_at := p_now;
  end if;
  if p_effect <> 'pauses' and not penstock._opens(v_next, p_effect) then
    return v_next;
  end if;
  v_next.resume := greatest(1, coalesce(v_next.allowed, p_running) / 2);
  if p_effect <> 'pauses' then
    v_next.tries := case when v_next.state = 'ramping'
      then penstock._tries_after(v_next, p_now) else 0 end;
  end if;
  v_next.state := 'open';
  v_next.class := p_class;
  v_next.allowed := null;
  v_next.changed_at := p_now;
  v_next.probe_job := null;
  v_next.probe_attempt := null;
  v_next.suspect := case when not v_next.row_shared then nullif(v_next.row_account, 0) end;
  v_next.reachable := false;
  v_next.reason := null;
  v_next.next_at := p_now
    + penstock._probe_wait(p_effect, v_next.tries, p_retry_after, v_next.row_shared);
  return v_next;
end
$$;

-- Whether the failures in a row open it. Failures of one account alone say less about the others.
create or replace function penstock._opens(p_circuit penstock.circuit, p_effect text)
returns boolean
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_row integer := 2;
begin
  -- A row of this length comes by chance about once in some hundred calls.
  v_row := least(8, 2 + ceil(p_circuit.row_refused * 10)); -- guard: by the share
  if p_effect = 'counts' then
    v_row := greatest(3, v_row); -- guard: thrice
  end if;
  if not p_circuit.row_shared then
    v_row := v_row + case p_effect when 'counts' then 3 else 1 end; -- guard: several accounts
  end if;
  return p_circuit.in_row >= v_row
    and (p_effect <> 'counts' or p_circuit.row_mixed); -- guard: from two jobs
end
$$;

create or replace function penstock._without_row(p_circuit penstock.circuit)
returns penstock.circuit
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
  p_circuit.in_row := 0;
  p_circuit.row_trouble := null;
  p_circuit.row_job := null;
  p_circuit.row_mixed := false;
  p_circuit.row_account := null;
  p_circuit.row_shared := false;
  p_circuit.row_refused := 0;
  return p_circuit;
end
$$;

create or replace function penstock._closed(p_circuit penstock.circuit, p_now timestamptz)
returns penstock.circuit
language sql immutable set search_path = pg_catalog, pg_temp
as $$
  select jsonb_populate_record(penstock._without_row(p_circuit), '{"state": "closed",
    "class": null, "reason": null, "next_at": null, "tries": 0, "probe_job": null,
    "probe_attempt": null, "allowed": null, "resume": 1, "suspect": null}'
    || jsonb_build_object('changed_at', p_now))
$$;
