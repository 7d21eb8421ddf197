-- Details of queues, accounts, stuck jobs and lost workers for operators. These are declared
-- options beside those in force, accounts by a prefix of their names, stuck jobs with account and
-- worker, the jobs of lost workers. Nothing here decides anything.

-- All queues, or the one with this name, as in the overview (counts.sql), with the changes that
-- operators have made and the message about the provider.
create or replace function penstock._queue_rows(p_queue text, p_now timestamptz)
returns setof jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select o.queue || jsonb_build_object('order', q.ordering, 'overrides', q.overrides,
    'declared_by', q.declared_by, 'failed_probes', c.tries,
    'message', case when c.state <> 'closed'
      then penstock._circuit_sentence(q.name, c, q.concurrency) end)
  from jsonb_array_elements(penstock._overview_live(40000, p_now) -> 'queues') o (queue)
  join penstock.queue q on q.id = (o.queue ->> 'id')::integer
  join penstock.circuit c on c.queue_id = q.id
  where p_queue is null or q.name = p_queue
  order by q.name
$$;

create or replace function penstock.read_queues() returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('now', penstock._rfc3339(penstock.clock()),
    'queues', (
      select coalesce(jsonb_agg(r), '[]') from penstock._queue_rows(null, penstock.clock()) r))
$$;

-- The details of one queue: every option as declared and as in force, what stops the whole queue,
-- and its kinds.
create or replace function penstock.read_queue(p_name text) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue penstock.queue := penstock._find_queue(p_name);
begin
  return (select r from penstock._queue_rows(p_name, penstock.clock()) r) || jsonb_build_object(
    'now', penstock._rfc3339(penstock.clock()),
    'declared', v_queue.declared,
    'stopped_by', (select w from penstock._stop(v_queue, null, penstock.clock()) w),
    'in_force', jsonb_build_object(
      'concurrency', v_queue.concurrency,
      'rate', (v_queue.declared || v_queue.overrides) -> 'rate',
      'burst', v_queue.rate_burst,
      'order', v_queue.ordering,
      'aging_step_seconds', extract(epoch from v_queue.aging_step),
      'timeout_seconds', extract(epoch from v_queue.timeout),
      'stale_after_seconds', extract(epoch from v_queue.stale_after),
      'stuck_after_seconds', extract(epoch from v_queue.stuck_after),
      'attempts', v_queue.max_attempts,
      'backoff', v_queue.backoff,
      'delay_seconds', extract(epoch from v_queue.backoff_delay),
      'backoff_max_seconds', extract(epoch from v_queue.backoff_max),
      'recovery', v_queue.recovery,
      'retention_seconds', penstock._kept_json(v_queue.succeeded_class),
      'retention_failed_seconds', penstock._kept_json(v_queue.failed_class),
      'local_only', v_queue.local_only,
      'drive', v_queue.drive),
    'kinds', (
      select coalesce(jsonb_agg(jsonb_build_object('name', k.name, 'attempts', k.max_attempts,
        'timeout_seconds', extract(epoch from k.timeout), 'priority_offset', k.priority_offset,
        'declared_by', k.declared_by) order by k.name), '[]')
      from penstock.kind k where k.queue_id = v_queue.id));
end
$$;

create or replace function penstock._kept_json(p_class smallint) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select coalesce(to_jsonb(extract(epoch from c.kept)), '"forever"')
  from penstock.retention_class c where c.id = p_class
$$;

-- Accounts whose names begin with p_prefix, by name; the next page begins after the last of this
-- one. Reads ten thousand names at most: if the database sorts by the rules of a language, other
-- names are between them.
create or replace function penstock.find_accounts(
  p_prefix text, p_limit integer default 100, p_after text default null
) returns setof jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform penstock._check_limit(p_limit);
  return query
  select penstock._account_json(n.account)
  from (
    select a as account, a.name from penstock.account a
    where a.name >= p_prefix and (p_after is null or a.name > p_after)
    order by a.name limit 10000
  ) n
  where starts_with(n.name, p_prefix)
  order by n.name limit p_limit;
end
$$;

-- Stuck jobs, the longest first, with their accounts and the workers that had them last.
create or replace function penstock.list_stuck(p_limit integer default 100) returns setof jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select s from penstock._list_stuck(least(greatest(p_limit, 1), 1000)) s $$;

-- Workers that were lost in the last day, the latest first, fifty at most: how many jobs each had,
-- and how many of them are in which state now. They are found among the attempts that were settled
-- in the ten minutes in which a lost worker's jobs are recovered.
create or replace function penstock.list_losses() returns setof jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('worker_id', w.name, 'started_at', penstock._rfc3339(w.started_at),
    'lost_at', penstock._rfc3339(w.lost_at), 'jobs', coalesce(w.lost_jobs, 0),
    'now', (
      select coalesce(jsonb_object_agg(s.status, s.n), '{}') from (
        select coalesce(j.status, f.status) as status, count(*) as n
        from (
          select t.job_id from penstock.attempt t
          where t.ended_at >= w.lost_at and t.ended_at < w.lost_at + interval '10 minutes'
            and t.worker_id = w.id
          union
          select e.id from penstock.finished e
          where e.finished_at >= w.lost_at and e.finished_at < w.lost_at + interval '10 minutes'
            and e.worker_id = w.id
        ) had
        left join penstock.job j on j.id = had.job_id
        left join penstock.finished f on j.id is null and f.id = had.job_id
        where coalesce(j.status, f.status) is not null
        group by 1
      ) s))
  from penstock.worker w
  where w.stopped_at is null and w.lost_at > penstock.clock() - interval '1 day'
  order by w.lost_at desc, w.name limit 50
$$;
