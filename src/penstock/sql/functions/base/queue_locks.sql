-- Two advisory locks of each queue, by its id: 1886413171 for its limits, 1886413172 for its order.
-- Submits and claims share them; a change of the queue takes them alone. Any role that may connect
-- can take such a lock, too, so nothing waits for one for long.

-- Shares a lock of a queue until the caller's transaction ends. Later reads of the queue in this
-- transaction are up to date: a transaction whose snapshot is older fails here (40001). Inlined.
create or replace function penstock._share_queue_lock(p_lock integer, p_queue integer)
returns boolean
language sql volatile
as $$
  select (pg_try_advisory_xact_lock_shared(p_lock, p_queue)
      or penstock._await_queue_lock(p_lock, p_queue))
    and (current_setting('transaction_isolation') = 'read committed'
      or penstock._refuse_old_snapshot(p_queue))
$$;

-- Waits longer than a change of the queue, which gives up after two seconds.
create or replace function penstock._await_queue_lock(p_lock integer, p_queue integer)
returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
  set lock_timeout = '3s' -- guard: not for ever
as $$
declare
  v_queue text;
  v_session integer;
begin
  perform pg_advisory_xact_lock_shared(p_lock, p_queue);
  return true;
exception when lock_not_available then
  select q.name into v_queue from penstock.queue q where q.id = p_queue;
  select l.pid into v_session
  from pg_locks l join pg_database d on d.oid = l.database and d.datname = current_database()
  where l.locktype = 'advisory' and l.granted and l.mode = 'ExclusiveLock' and l.objsubid = 2
    and l.classid = p_lock::oid and l.objid = p_queue::oid;
  perform penstock._refuse(503, 'queue_locked',
    format('another session of the database%s has held a lock of queue %s for too long',
           ' (process ' || v_session || ')', v_queue), 'queue',
    jsonb_build_object('queue', v_queue),
    'Try again. `penstock doctor` shows operators which session it is.');
end
$$;

-- Fails with an old snapshot, because a row that was changed since the snapshot cannot be locked.
-- The lock is undone at once: an open transaction of an app must not keep operators from pausing
-- the queue.
create or replace function penstock._refuse_old_snapshot(p_queue integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
  set lock_timeout = '3s'
as $$
begin
  perform from penstock.queue q where q.id = p_queue for share; -- guard: as it is now
  raise exception using errcode = 'PS000';
exception when sqlstate 'PS000' then
  return true;
end
$$;
