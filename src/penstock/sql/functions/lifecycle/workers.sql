-- Workers and their leases. A lease belongs to the worker, not to each job: one heartbeat updates
-- one row. A worker that was marked as lost stays lost: it drops its attempts and registers again.

-- Registers a worker and returns its id. p_queues, p_kinds: the queues it claims from and the kinds
-- it has handlers for; null: all.
create or replace function penstock.register_worker(
  p_name text, p_lease interval default '15 seconds', p_queues text[] default null,
  p_kinds text[] default null
) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_id bigint;
begin
  if p_name is null or length(p_name) not between 1 and 200 then
    perform penstock._refuse(422, 'invalid_worker',
      'the worker''s name must be a text of 1 to 200 characters', 'name');
  end if;
  if p_lease is null or p_lease <= interval '0' or p_lease > interval '3650 days' then
    perform penstock._refuse(422, 'invalid_worker',
      'the lease must be more than 0 and at most ten years', 'lease');
  end if;
  -- Random, so that no earlier process, and none before a restore from a backup, has the same id.
  insert into penstock.worker (id, name, lease, started_at, beat_at, queues, kinds)
  values (('x' || left(replace(gen_random_uuid()::text, '-', ''), 15))::bit(60)::bigint,
    p_name, p_lease, penstock.clock(), penstock.clock(), p_queues, p_kinds)
  returning id into v_id;
  return v_id;
end
$$;

-- Records a heartbeat. True: the lease is renewed. False: the worker was marked as lost, and so are
-- all its attempts. p_accepting: queues of which it would take one more job now. The time since
-- when is kept from heartbeat to heartbeat; after a gap it starts again at now, since nobody knows
-- what the worker did in between.
create or replace function penstock.beat_worker(
  p_worker bigint, p_accepting text[] default null
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := penstock.clock();
begin
  update penstock.worker w set beat_at = v_now,
    accepting = (
      select jsonb_object_agg(u.queue, coalesce(
        case when w.beat_at >= v_now - w.lease / 2
          then w.accepting -> u.queue end, -- guard: gap
        to_jsonb(v_now)))
      from unnest(p_accepting) u (queue))
  where w.id = p_worker
    and lost_at is null and stopped_at is null; -- guard: not lost
  return found;
end
$$;

-- Takes the worker's advisory lock on this session, for as long as the session lives: while any
-- session holds it, the worker is not dead. False: the worker was already marked as lost.
create or replace function penstock.lock_worker(p_worker bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_advisory_lock_shared(p_worker);
  update penstock.worker set locks = true, beat_at = penstock.clock()
  where id = p_worker
    and lost_at is null and stopped_at is null; -- guard: not lost
  return found;
end
$$;

-- Stops a worker cleanly. The next recovery releases the attempts that it still has.
create or replace function penstock.stop_worker(p_worker bigint) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  update penstock.worker set stopped_at = penstock.clock()
  where id = p_worker
    and stopped_at is null -- guard: once
    and lost_at is null -- guard: not lost
$$;

create or replace view penstock.worker_health as
select w.name as worker_id, w.beat_at as last_heartbeat,
  (select count(*) from penstock.job j
   where j.deadline_at is not null and j.worker_id = w.id)::integer as running,
  w.lost_at is null and w.stopped_at is null
    and w.beat_at + w.lease >= penstock.clock() as alive
from penstock.worker w
where w.stopped_at is null
  and (w.lost_at is null or w.lost_at > penstock.clock() - interval '1 day');
