-- Find jobs and queues that should make progress and do not. check() finds states that may never be
-- (safety); this finds states that may last for a moment, but not for long (liveness): a job that
-- could start and does not, or a due time at which nothing happened.
--
-- Each rule tests the same conditions as the functions that should have acted, and then whether
-- they had time to act: the conditions have held for a while, and nothing has started or finished
-- in the queue since. So a busy queue is never reported: there a job may wait for its turn. While
-- no worker is alive, nothing is expected: `waiting_for` and the doctor report that. Nothing here
-- takes a lock or decides anything. Live jobs are found by index, from the oldest.

-- Whether an open transaction locks the row with this xmax, so that claims and upkeep skip it. A
-- transaction that was open when our snapshot was taken may have a number beyond the snapshot.
create or replace function penstock._is_locked(p_xmax xid) returns boolean
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select case when p_xmax = '0' or f.id < 3 then false when f.id >= f.next then true
    else coalesce(pg_xact_status(f.id::text::xid8) = 'in progress', false) end
  from (
    select n.next, n.next - 2147483648
      + mod(mod(p_xmax::text::bigint - n.next + 2147483648, 4294967296) + 4294967296, 4294967296)
      as id
    from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next) n
  ) f
$$;

-- Whether an open transaction locks the account.
create or replace function penstock._account_locked(p_account bigint) returns boolean
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select p_account > 0 and exists (
    select from penstock.account a where a.id = p_account and penstock._is_locked(a.xmax))
$$;

-- Queues and accounts in which an attempt has started or was settled since p_since.
create or replace function penstock._moved_since(p_since timestamptz)
returns table (queue_id integer, account_id bigint)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select j.queue_id, j.account_id from penstock.job j
  where j.deadline_at is not null and j.started_at > p_since
  union
  select f.queue_id, f.account_id from penstock.finished f where f.finished_at > p_since
  union
  select j.queue_id, j.account_id
  from penstock.attempt t join penstock.job j on j.id = t.job_id
  where t.ended_at > p_since
$$;

-- Queues from which some live worker would have taken one more job since before p_before, with the
-- kinds it has handlers for. A worker without a heartbeat for half its lease does not count.
create or replace function penstock._accepted_kinds(p_before timestamptz, p_now timestamptz)
returns table (queue_id integer, kind_id integer, since timestamptz)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select q.id, k.id, min((w.accepting ->> q.name)::timestamptz)
  from penstock._live_workers(p_now) w
  join penstock.queue q on w.accepting ? q.name
  join penstock.queue_kind qk on qk.queue_id = q.id
  join penstock.kind k on k.id = qk.kind_id and (w.kinds is null or k.name = any (w.kinds))
  where (w.accepting ->> q.name)::timestamptz <= p_before -- guard: for long
    and w.beat_at >= p_now - w.lease / 2 -- guard: beats
  group by q.id, k.id
$$;

-- The job of a kind that has waited longest, since before p_before: among the first hundred in no
-- lane, and the first of a hundred open lanes whose accounts have had a free slot all the time.
create or replace function penstock._oldest_startable(
  p_queue integer, p_kind integer, p_before timestamptz, p_now timestamptz
) returns table (id uuid, since timestamptz)
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
  select c.id, c.since
  from (
    (select j.id, j.updated_at as since, j.account_id
     from penstock.job j
     where j.queue_id = p_queue and j.kind_id = p_kind and j.lane = -1 and j.status = 'queued'
       and (j.expires_at is null or j.expires_at > p_now) -- guard: in time
     order by j.rank limit 100)
    union all
    (select f.id, f.updated_at, l.account_id
     from penstock.lane l join penstock.account a on a.id = l.account_id
     cross join lateral (
       select j.id, j.updated_at from penstock.job j
       where j.queue_id = p_queue and j.kind_id = p_kind and j.lane = l.account_id
         and j.status = 'queued' and (j.expires_at is null or j.expires_at > p_now)
       order by j.rank limit 1
     ) f
     where l.queue_id = p_queue and l.kind_id = p_kind and l.open and l.waiting > 0
       and (a.concurrency is null or a.running < a.concurrency) -- guard: account limit
     order by l.head limit 100)
  ) c
  where c.since <= p_before -- guard: waits for long
    and not penstock._account_locked(c.account_id) -- guard: account locked
    and c.account_id not in ( -- guard: account moved
      select m.account_id from penstock._moved_since(p_before) m where m.account_id <> 0)
  order by c.since limit 1
$$;

-- Lists everything that has been due for older_than and has not happened; none if there is no such
-- thing. A row may be about to disappear: to be sure, call it twice, a moment apart.
create or replace function penstock.check_liveness(older_than interval default '10 seconds')
returns table (rule text, subject text, since timestamptz, detail text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz := penstock.clock();
  v_before timestamptz := v_now - older_than;
begin
  if older_than is null or older_than < interval '0' then
    perform penstock._refuse(422, 'invalid_age', 'the age must be 0 or more', 'older_than');
  end if;
  return query
  with standing as materialized (
    select min(w.started_at) as since from penstock._live_workers(v_now) w
    where w.locks and w.started_at <= v_before -- guard: stands
      and w.beat_at >= v_now - w.lease / 2
  )
  -- Queued jobs that nothing stops: the oldest of each queue and kind. The same rule applies to an
  -- open circuit whose probe is due, while a job could be that probe.
  select case when c.state = 'open' then 'a probe starts when it is due'
      else 'a queued job starts when it may' end,
    j.id::text, greatest(j.since, k.since, q.changed_at, c.changed_at, c.next_at, g.rate_next_at),
    format('queue %s, kind %s: a worker has a free slot, and no job of the queue starts or ends',
      q.name, n.name)
  from penstock._accepted_kinds(v_before, v_now) k
  join penstock.queue q on q.id = k.queue_id join penstock.kind n on n.id = k.kind_id
  join penstock.gate g on g.queue_id = q.id
  join penstock.circuit c on c.queue_id = q.id
  cross join lateral penstock._stop(q, n.name, v_now) s (word)
  cross join lateral penstock._oldest_startable(q.id, n.id, v_before, v_now) j
  where (c.state = 'open' or s.word is null) -- guard: stopped
    and (c.state <> 'open' or q.paused_at is null) -- guard: no probe while paused
    and (c.state <> 'open' or c.next_at <= v_before) -- guard: probe due
    and c.state <> 'ramping' -- guard: ramp
    and not exists ( -- guard: probe runs
      select from penstock.job p
      where p.id = c.probe_job and p.attempt = c.probe_attempt and p.deadline_at is not null)
    and penstock._waiting_for(null, q, g, 0, null, 0, v_now) is null -- guard: limits
    and greatest(q.changed_at, c.changed_at, g.rate_next_at) <= v_before -- guard: so for long
    and q.id not in (select m.queue_id from penstock._moved_since(v_before) m) -- guard: moved
  union all
  -- As L6, but here with the job that waits.
  select 'a queued job starts when it may', j.id::text, j.updated_at,
    format('queue %s: the lane of account %s is closed beside a free slot', q.name, a.name)
  from penstock.lane l join penstock.account a on a.id = l.account_id
  join penstock.queue q on q.id = l.queue_id
  cross join lateral (
    select f.id, f.updated_at from penstock.job f
    where f.queue_id = l.queue_id and f.kind_id = l.kind_id and f.lane = l.account_id
      and f.status = 'queued'
    order by f.rank limit 1
  ) j
  where not l.open and l.waiting > 0 and (a.concurrency is null or a.running < a.concurrency)
    and j.updated_at <= v_before
  union all
  -- Due jobs that are not queued, in queues that a worker claims from: the claim queues them before
  -- it checks any limit, unless the queue is stopped.
  select 'a job is queued when it is due', j.id::text,
    greatest(j.run_at, k.since, q.changed_at, c.changed_at), format('queue %s', q.name)
  from (
    select a.queue_id, min(a.since) as since from penstock._accepted_kinds(v_before, v_now) a
    group by a.queue_id
  ) k
  join penstock.queue q on q.id = k.queue_id
  join penstock.circuit c on c.queue_id = q.id
  cross join lateral (
    select d.id, d.run_at, d.lane from penstock.job d
    where d.queue_id = q.id and d.status = 'scheduled' and not d.failure_pending
      and d.run_at <= v_before
      and not penstock._account_locked(d.lane) -- guard: lane locked
    order by d.run_at limit 1
  ) j
  where q.paused_at is null -- guard: paused
    and c.state <> 'open' -- guard: open
    and greatest(q.changed_at, c.changed_at) <= v_before
    and q.id not in (select m.queue_id from penstock._moved_since(v_before) m)
  union all
  -- Driven queues, whose jobs run inside HTTP calls: work is due and nobody calls.
  select 'a driven queue with due jobs is called', q.name, j.since, format('job %s waits', j.id)
  from penstock.due_drives() d (name)
  join penstock.queue q on q.name = d.name
  join penstock.circuit c on c.queue_id = q.id
  cross join lateral (
    select o.id, o.since from penstock._kinds_named(q.id, null) n (kinds)
    cross join lateral unnest(n.kinds) k (id)
    cross join lateral penstock._oldest_startable(q.id, k.id, v_before, v_now) o
    order by o.since limit 1
  ) j
  where c.state = 'closed' and q.changed_at <= v_before
    and q.id not in (select m.queue_id from penstock._moved_since(v_before) m)
  union all
  -- Tasks of upkeep, if a worker has been alive for long enough to do them.
  select u.* from standing s cross join lateral (
    (select 'upkeep runs', 'measure_waits', greatest(m.at, s.since), 'no worker has called it since'
     from penstock.measured m
     where greatest(m.at, s.since) <= v_before - interval '10 seconds')
    union all
    (select 'an attempt past its deadline is settled', j.id::text, j.deadline_at,
       format('attempt %s', j.attempt)
     from penstock.job j
     where j.deadline_at <= v_before
       and not penstock._is_locked(j.xmax) and not penstock._account_locked(j.account_id)
     order by j.deadline_at limit 20)
    union all
    (select 'a silent worker is marked as lost', w.name, w.beat_at + w.lease,
       format('worker %s', w.id)
     from penstock.worker w
     where w.cleared_at is null and w.lost_at is null and w.stopped_at is null
       and w.beat_at + w.lease <= v_before
     limit 20)
    union all
    (select 'jobs of a worker that is gone are settled', j.id::text,
       coalesce(w.lost_at, w.stopped_at), format('worker %s, attempt %s', w.name, j.attempt)
     from penstock.worker w join penstock.job j on j.worker_id = w.id
     where w.cleared_at is null and j.deadline_at is not null
       and coalesce(w.lost_at, w.stopped_at) <= v_before
       and not penstock._is_locked(j.xmax) and not penstock._account_locked(j.account_id)
     limit 20)
    union all
    (select 'a job whose cancellation was requested finishes', j.id::text, j.cancel_requested_at,
       format('%s, attempt %s', j.status, j.attempt)
     from penstock.job j
     -- A worker has ten seconds to stop it cleanly.
     where j.cancel_requested_at <= v_before - interval '10 seconds'
       and not penstock._is_locked(j.xmax) and not penstock._account_locked(j.account_id)
     order by j.cancel_requested_at limit 20)
    union all
    (select 'a job that expired before its start finishes', j.id::text, j.expires_at,
       format('queue %s', q.name)
     from penstock.queue q cross join lateral (
       select e.id, e.expires_at from penstock.job e
       where e.queue_id = q.id and e.status in ('scheduled', 'queued')
         and e.expires_at <= v_before
         and not penstock._is_locked(e.xmax) and not penstock._account_locked(e.account_id)
       order by e.expires_at limit 1) j)
    union all
    (select 'a last failure that may be the provider''s is decided', j.id::text, j.run_at,
       'its minute is over'
     from penstock.job j
     where j.failure_pending and j.run_at <= v_before
       and not penstock._is_locked(j.xmax) and not penstock._account_locked(j.account_id)
     order by j.run_at limit 20)
    union all
    (select 'a ramp ends', q.name,
       greatest(c.changed_at, c.eased_at) + interval '1 minute', 'still ramping'
     from penstock.circuit c join penstock.queue q on q.id = c.queue_id
     where c.state = 'ramping'
       -- A ramp lasts for as long as calls are refused in it.
       and c.eased_at + interval '1 minute' <= v_before -- guard: nothing refused
       and c.changed_at + interval '1 minute' <= v_before)
  ) u (rule, subject, since, detail)
  where s.since is not null
  union all
  -- Due webhooks and on_finish callbacks: the one that is due for longest of each receiver or kind.
  (select 'a webhook is sent when it is due', d.id::text, d.next_at, format('to %s', d.host)
   from penstock.delivery d
   where d.next_at <= v_before
     and exists (
       select from penstock._live_workers(v_now) w where w.locks and w.started_at <= v_before)
     -- While others are being sent, a webhook may wait for its turn.
     and not exists ( -- guard: others are sent
       select from penstock.delivery o where o.sending_until > v_now)
   order by d.next_at limit 1)
  union all
  select 'an on_finish callback runs when it is due', h.job_id::text, h.next_at,
    format('kind %s, tried %s times', k.name, h.tries)
  from penstock.kind k
  cross join lateral (
    select o.job_id, o.next_at, o.tries from penstock.pending_on_finish o
    where o.kind_id = k.id and o.next_at <= v_before
      and not penstock._is_locked(o.xmax) -- guard: callback runs
    order by o.next_at limit 1
  ) h
  where exists ( -- guard: handler
    select from penstock._live_workers(v_now) w
    where w.locks and w.started_at <= v_before and (w.kinds is null or k.name = any (w.kinds)))
  order by 3;
end
$$;
