-- What a function outside reports of jobs that were handed to it. Each item stands for itself:
--   accepted   it took effect          duplicate  this attempt has ended already
--   stale      an older attempt's      unknown    no such job
--   invalid    the token is wrong      busy       an app's transaction holds the account: again
create or replace function penstock.resolve_callbacks(
  p_jobs uuid[], p_attempts integer[], p_tokens text[], p_outcomes text[],
  p_results jsonb[] default null, p_errors jsonb[] default null, p_units bigint[] default null
) returns table (job_id uuid, outcome text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_item record;
  v_verdict text;
  v_answered uuid[] := '{}';
  v_attempts integer[] := '{}';
  v_queues integer[] := '{}';
begin
  for v_item in
    select t.*, (select j.queue_id from penstock.job j where j.id = t.id) as queue_id
    from unnest(p_jobs, p_attempts, p_tokens, p_outcomes, p_results, p_errors, p_units)
      with ordinality t (id, attempt, token, outcome, result, error, units, ordinal)
    -- By queue: two arrays at once take the gates in the same order.
    order by queue_id, t.id, t.ordinal
  loop
    job_id := v_item.id;
    if v_item.outcome is null
      or v_item.outcome not in ('succeeded', 'failed', 'retry') -- guard: outcome known
      or v_item.token is null -- guard: token given
      or v_item.units < 0 -- guard: units
    then
      outcome := 'invalid';
      return next;
      continue;
    end if;
    select s.verdict into v_verdict
    from penstock._settle_jobs(null, sha256(convert_to(v_item.token, 'UTF8')), array[v_item.id],
      array[v_item.attempt], array[v_item.outcome], array[v_item.result], array[v_item.error],
      null, null, p_units => array[v_item.units], p_feel => false) s;
    outcome := case v_verdict when 'done' then 'accepted' when 'busy' then 'busy'
      else penstock._why_stale(v_item.id, v_item.attempt) end;
    if v_verdict = 'done' and v_item.outcome = 'succeeded' then
      v_answered := v_answered || v_item.id;
      v_attempts := v_attempts || v_item.attempt;
      v_queues := v_queues || v_item.queue_id;
    end if;
    return next;
  end loop;
  -- Circuits after all gates: a finish of the same queues takes them in that order. Only that it
  -- answered: what else bears on a circuit is not for a function outside to say.
  if v_answered <> '{}' then
    perform penstock._feel_ends(v_answered, v_attempts, v_queues, null,
      array_fill('succeeded'::text, array[cardinality(v_answered)]), null, penstock.clock());
  end if;
end
$$;

create or replace function penstock._why_stale(p_job uuid, p_attempt integer) returns text
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    (select case when exists (select from penstock.attempt t
                              where t.job_id = p_job and t.attempt = p_attempt) then 'stale'
              else 'invalid' end
     from penstock.job j where j.id = p_job),
    (select case when f.attempt = p_attempt and f.ended_in_start then 'duplicate'
              else 'stale' end
     from penstock.finished f where f.id = p_job),
    'unknown')
$$;
