-- Submitting one job, with or without an idempotency key.

-- Makes the commit of a transaction that only read wait for the synchronous standbys, as the commit
-- of a write does. The rows it read are committed here, but perhaps on no standby yet: their writer
-- may have given up waiting, and a promoted standby would not have them. A commit waits only if its
-- transaction wrote to the log, and a message is the smallest such write.
create or replace function penstock._await_standbys() returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('synchronous_standby_names') <> '' then
    perform pg_logical_emit_message(true, 'penstock', '');
  end if;
end
$$;

-- The same for an answer about a submit, which may not even be on the disk here (submit_waking).
-- Always, not only when the log is behind: some hosted servers do not let us ask for that.
create or replace function penstock._await_disk() returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_logical_emit_message(true, 'penstock', ''); -- guard: on disk
end
$$;

-- As _submit_jobs for one job. With a key, the same transaction writes the key's record: a
-- repetition gets the first call's job, a call with other arguments is refused, and a twin that
-- comes before the first has committed waits for it, at most five seconds. p_wake: the queue whose
-- idle workers are notified at the commit. p_own: as in _submit_jobs. p_position: whether to return
-- position and ETA, if they cost little to compute, so that a deep queue makes no submit slow.
create or replace function penstock.submit_one(
  p_kind text, p_payload jsonb, p_account text default null, p_dedupe_key text default null,
  p_topic text default null, p_priority integer default null, p_run_at timestamptz default null,
  p_delay interval default null, p_max_attempts integer default null,
  p_timeout interval default null, p_expires interval default null,
  p_metadata jsonb default null, p_key text default null, p_scope text default '',
  p_wake text default null, p_price bigint default null, p_webhook_url text default null,
  p_own boolean default false, p_position boolean default true
) returns table (
  id uuid, status penstock.job_status, deduplicated boolean, replayed boolean,
  queue_position bigint, eta_seconds double precision, waiting_for text, balance bigint, batch uuid,
  ids uuid[]
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  -- A session may have planned while the table was empty: it must not read the whole table later.
  set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_print bytea;
  v_record penstock.idempotency;
  v_lock_timeout text;
  v_plain record;
  v_known boolean;
  v_job penstock.new_job := (1, p_kind, p_payload, p_account, p_dedupe_key, p_topic, p_priority,
    p_run_at, p_delay, p_max_attempts, p_timeout, p_expires, p_metadata, p_price, p_webhook_url);
  v_jobs penstock.new_job[];
  v_kind penstock.kind;
  v_pieces jsonb[];
  v_total bigint;
  v_count bigint := 0; -- what the pieces so far have of v_total
  v_shared bigint := 0; -- the price of the pieces so far
begin
  if p_key is not null then
    if length(p_key) not between 1 and 255 then
      perform penstock._refuse(422, 'invalid_job',
        'idempotency_key must be a text of 1 to 255 characters', 'idempotency_key');
    end if;
    perform penstock._refuse_long_numbers(p_payload), penstock._refuse_long_numbers(p_metadata);
    -- Times and durations as numbers: their texts depend on the session's settings.
    v_print := sha256(convert_to((jsonb_build_array(p_kind, p_payload, p_account, p_dedupe_key,
      p_topic, p_priority, extract(epoch from p_run_at), extract(epoch from p_delay),
      p_max_attempts, extract(epoch from p_timeout), extract(epoch from p_expires),
      p_metadata)
      -- Not a price that the app's code computes: it may be another one tomorrow.
      || coalesce((select to_jsonb(p_price) where p_price is not null and not exists (
        select from penstock.kind k where k.name = p_kind and 'price' = any (k.computed))),
        '[]')
      || case when p_webhook_url is not null
        then jsonb_build_object('webhook_url', p_webhook_url) else '[]' end)::text, 'UTF8'));
    v_lock_timeout := current_setting('lock_timeout');
    begin
      perform set_config('lock_timeout', '5s', true);
      insert into penstock.idempotency (scope, key, fingerprint, job_id, deduplicated, created_at)
      values (p_scope, p_key, v_print, '00000000-0000-0000-0000-000000000000', false,
              penstock.clock())
      on conflict do nothing
      returning * into v_record;
      perform set_config('lock_timeout', v_lock_timeout, true);
    exception when lock_not_available then
      perform penstock._refuse(409, 'idempotency_in_progress',
        'a request with this idempotency key is still being accepted', 'idempotency_key',
        p_hint => 'Repeat it with the same key.');
    end;
    if v_record.key is null then
      select * into v_record from penstock.idempotency i
      where i.scope = p_scope and i.key = p_key;
      if v_record.fingerprint is distinct from v_print then -- guard: same job
        perform penstock._refuse(422, 'idempotency_key_reused',
          'this idempotency key was used with other arguments', 'idempotency_key');
      end if;
      id := v_record.job_id; status := penstock._status_of(v_record.job_id);
      deduplicated := v_record.deduplicated; replayed := true;
      if status is null then
        perform penstock._refuse(404, 'unknown_job',
          'the job accepted with this idempotency key is no longer kept', 'idempotency_key');
      end if;
      select s.balance, s.batch, s.ids into balance, batch, ids
      from penstock._submitted_before(v_record.job_id) s;
      perform penstock._await_disk();
    end if;
  end if;

  if replayed is null then
    deduplicated := false;
    if p_account is null and p_dedupe_key is null and p_price is null then
      -- Assigned, which is quicker than a select of its columns.
      v_plain := penstock._submit_plain(v_job, p_position);
      id := v_plain.id; status := v_plain.status; queue_position := v_plain.queue_position;
      eta_seconds := v_plain.eta_seconds; waiting_for := v_plain.waiting_for;
      v_known := v_plain.is_known;
    end if;
    if id is null then
      v_jobs := array[v_job];
      -- A large request of a kind that splits becomes several jobs, which form a batch.
      select * into v_kind from penstock.kind k where k.name = p_kind and k.split_field is not null;
      if found and p_dedupe_key is null then
        -- Before the pieces are made: a caller who requests a million may not be able to pay for
        -- one.
        if penstock._count_of(p_payload, v_kind.split_field) > 1000::bigint * v_kind.split_most then
          perform penstock._refuse(422, 'invalid_payload',
            format('%s may be at most %s: a request becomes 1000 jobs at most', v_kind.split_field,
                   1000::bigint * v_kind.split_most), v_kind.split_field);
        end if;
        v_pieces := penstock._pieces(p_payload, v_kind.split_field, v_kind.split_most);
        -- The price is that of the whole request: its pieces share it.
        p_price := coalesce(p_price, penstock._price_of(v_kind.price, p_payload));
        v_total := penstock._count_of(p_payload, v_kind.split_field);
        for v_n in 1 .. coalesce(cardinality(v_pieces), 0) loop
          v_job.ordinal := v_n;
          v_job.payload := v_pieces[v_n];
          v_count := v_count + penstock._count_of(v_job.payload, v_kind.split_field);
          -- In proportion to the piece; the pieces add up to exactly the whole price.
          v_job.price := case when p_price between 0 and 1000000000000
            then div(p_price::numeric * v_count, v_total) - v_shared else p_price end;
          v_shared := div(p_price::numeric * v_count, v_total);
          v_jobs[v_n] := v_job;
        end loop;
      end if;
      with submitted as (
        select s.* from penstock._submit_jobs(v_jobs, v_pieces is not null, true, p_own) s
      )
      select (array_agg(s.id order by s.ordinal))[1], (array_agg(s.status order by s.ordinal))[1],
        bool_or(s.deduplicated), max(s.balance), (array_agg(s.batch))[1],
        case when v_pieces is not null then array_agg(s.id order by s.ordinal) end
      into id, status, deduplicated, balance, batch, ids from submitted s;
    end if;
    if p_key is not null then
      update penstock.idempotency i set job_id = submit_one.id,
        deduplicated = submit_one.deduplicated
      where i.scope = p_scope and i.key = p_key;
    end if;
    replayed := false;
    if p_wake is not null and status = 'queued' and not deduplicated then
      perform pg_notify('penstock_job', p_wake);
    end if;
  end if;
  if p_position and v_known is not true then
    select w.queue_position, w.eta_seconds, w.waiting_for
    into queue_position, eta_seconds, waiting_for
    from penstock._waiting_at_submit(id) w;
  end if;
  return next;
end
$$;

-- Position, ETA and waiting reason of a job that was just submitted.
create or replace function penstock._waiting_at_submit(
  p_job uuid, out queue_position bigint, out eta_seconds double precision, out waiting_for text
)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_simple boolean;
begin
  select w.simple, w.queue_position, w.eta_seconds, w.waiting_for
  into v_simple, queue_position, eta_seconds, waiting_for
  from penstock._waiting_if_simple(p_job, penstock.clock()) w;
  if v_simple is not true then
    select w.queue_position, w.eta_seconds, w.waiting_for
    into queue_position, eta_seconds, waiting_for
    from penstock.job j cross join lateral penstock._waiting(j, penstock._counted_at_submit()) w
    where j.id = p_job;
  end if;
end
$$;

-- The same for a job that was submitted and committed: a worker may have started it since. The
-- common case comes first, a job that is alone and that an idle worker starts at once.
create or replace function penstock.read_submitted(
  p_job uuid, out queue_position bigint, out eta_seconds double precision
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
  v_next boolean;
begin
  select j.status = 'queued' and j.lane = -1 and s.handled and c.state = 'closed'
    and q.concurrency is null and q.rate_count is null and q.paused_at is null
    and (select count(*) from (
           select from penstock.job o
           where o.queue_id = j.queue_id and o.status = 'queued'
           order by o.kind_id, o.lane, o.rank limit 2) f) = 1
  into v_next
  from penstock.job j join penstock.kind k on k.id = j.kind_id
  join penstock.queue q on q.id = j.queue_id join penstock.circuit c on c.queue_id = q.id
  cross join lateral penstock._service(q.name, k.name, penstock.clock()) s
  where j.id = p_job and j.status in ('scheduled', 'queued');
  if not found or v_next then
    queue_position := 1;
    eta_seconds := 0;
    return;
  end if;
  select w.queue_position, w.eta_seconds into queue_position, eta_seconds
  from penstock._waiting_at_submit(p_job) w;
end
$$;

-- As submit_one with p_wake, but workers see the job before it is on the disk, and the caller gets
-- the answer after. The log is written in order, so the commit of a claim, which waits for the
-- disk, makes the job durable too: no handler starts a job that a crash could undo (if workers have
-- synchronous_commit on), and between submit and handler there is one wait for the disk instead of
-- two. The position is read after the early commit, so that workers do not wait for it either.
-- Cannot run in a transaction of the caller. It has no fixed search_path and does not run with the
-- owner's rights, because both would forbid the commit.
create or replace procedure penstock.submit_waking(
  p_kind text, p_payload jsonb, p_account text, p_dedupe_key text, p_topic text,
  p_priority integer, p_run_at timestamptz, p_delay interval, p_max_attempts integer,
  p_timeout interval, p_expires interval, p_metadata jsonb, p_key text, p_scope text, p_wake text,
  p_price bigint, p_webhook_url text, inout id uuid, inout status text,
  inout deduplicated boolean, inout replayed boolean, inout queue_position bigint,
  inout eta_seconds double precision, inout balance bigint, inout batch uuid, inout ids text[]
)
language plpgsql
as $$
#variable_conflict use_column
begin
  select s.id, s.status, s.deduplicated, s.replayed, s.balance, s.batch, s.ids
  into id, status, deduplicated, replayed, balance, batch, ids
  from penstock.submit_one(p_kind, p_payload, p_account, p_dedupe_key, p_topic, p_priority,
    p_run_at, p_delay, p_max_attempts, p_timeout, p_expires, p_metadata, p_key, p_scope, p_wake,
    p_price, p_webhook_url, p_position => false) s;
  perform pg_catalog.set_config('synchronous_commit', 'off', true);
  -- Called once before the commit: if the caller may not call it, nothing is accepted.
  perform pg_catalog.pg_logical_emit_message(true, 'penstock', '');
  commit;
  if status in ('scheduled', 'queued') then
    begin
      select s.queue_position, s.eta_seconds into queue_position, eta_seconds
      from penstock.read_submitted(id) s;
    exception when insufficient_privilege then
      null; -- a role that was granted submits before there was such a function
    end;
  end if;
  perform pg_catalog.pg_logical_emit_message(true, 'penstock', ''); -- guard: answered when safe
end
$$;

-- What a repeated submit returns about its job, beside id and status.
create or replace function penstock._submitted_before(
  p_job uuid, out balance bigint, out batch uuid, out ids uuid[]
)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_of record;
begin
  select o.account_id, o.batch_id, k.split_field into v_of
  from (
    select j.account_id, j.batch_id, j.kind_id from penstock.job j where j.id = p_job
    union all
    select f.account_id, f.batch_id, f.kind_id from penstock.finished f where f.id = p_job
  ) o
  join penstock.kind k on k.id = o.kind_id;
  select a.balance into balance from penstock.account a
  where a.id = v_of.account_id and a.id <> 0;
  if v_of.split_field is not null and v_of.batch_id is not null then
    batch := v_of.batch_id;
    select array_agg(i.id order by i.id) into ids from penstock._batch_items(batch) i;
  end if;
end
$$;

create or replace function penstock._status_of(p_id uuid) returns penstock.job_status
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    (select j.status from penstock.job j where j.id = p_id),
    (select f.status from penstock.finished f where f.id = p_id))
$$;

-- Notifies idle workers, so that they poll now. A lost wake-up costs a poll interval, never a job.
create or replace function penstock.wake_workers(p_queues text[]) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$ select pg_notify('penstock_job', q.name) from unnest(p_queues) q (name) $$;

-- The queues of these kinds.
create or replace function penstock.queues_of(p_kinds text[]) returns setof text
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select distinct q.name from penstock.kind k join penstock.queue q on q.id = k.queue_id
  where k.name = any (p_kinds)
$$;
