-- Erase an account: payloads, results and everything else of its jobs are deleted with the jobs;
-- its keys are revoked; and at last its name is removed, so that the ledger refers to a number and
-- to nobody.
--
-- Erasure runs in steps that hold locks for a moment: call it until it is done. Until the last step
-- the account keeps its name, so an interrupted caller repeats the call. Waiting jobs are cancelled
-- and refunded, the cancellation of running jobs is requested, and the erasure is not done while
-- any job is live. Pending on_finish callbacks and webhooks are dropped: they would pass on the
-- data that is to be removed. The ledger and the resolutions stay, because they are never changed:
-- amounts, the references and reasons that the operator wrote, and ids of jobs that are gone. So do
-- the hourly counts, which are of all accounts together. Data of jobs that retention removed
-- earlier is not searched for: the errors of their attempts are dropped with their partition, late
-- results after 90 days, records of idempotency keys after 7.

-- Deletes finished jobs with all that belongs to them, webhooks and uploads, at most p_rows of
-- each. Returns how many of each were deleted.
create or replace function penstock._erase_rows(
  p_account bigint, p_rows integer, out jobs integer, out webhooks integer, out uploads integer
)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_jobs uuid[] := array(
    select f.id from penstock.finished f
    where f.account_id = p_account and f.account_id <> 0
    order by f.id limit p_rows);
  v_uploads uuid[] := array(
    select u.id from penstock.upload u where u.account_id = p_account limit least(p_rows, 50));
begin
  delete from penstock.chunk c where c.job_id = any (v_jobs);
  delete from penstock.step s where s.job_id = any (v_jobs);
  delete from penstock.attempt t where t.job_id = any (v_jobs);
  delete from penstock.late_result o where o.job_id = any (v_jobs);
  delete from penstock.pending_on_finish h where h.job_id = any (v_jobs);
  delete from penstock.job_webhook w where w.job_id = any (v_jobs);
  delete from penstock.finished f where f.id = any (v_jobs) and f.account_id = p_account;
  delete from penstock.delivery d
  where d.id = any (array(
    select e.id from penstock.delivery e where e.account_id = p_account limit p_rows));
  get diagnostics webhooks = row_count;
  delete from penstock.upload_part p where p.upload_id = any (v_uploads);
  delete from penstock.upload u where u.id = any (v_uploads);
  jobs := cardinality(v_jobs);
  uploads := cardinality(v_uploads);
end
$$;

-- Whether nothing but the ledger and the resolutions refers to the account any more.
create or replace function penstock._is_empty(p_account text) returns boolean
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select not exists (
    select from penstock.account a
    where a.name = p_account and (
      exists (select from penstock.job j where j.account_id = a.id and j.account_id <> 0)
      or exists (select from penstock.finished f where f.account_id = a.id and f.account_id <> 0)
      or exists (select from penstock.delivery d where d.account_id = a.id)
      or exists (select from penstock.upload u where u.account_id = a.id)))
$$;

-- Runs one step of an erasure. Returns the receipt so far; `done`: it is complete; `live`: how many
-- jobs are not finished; `cancelled`: how many jobs this step has cancelled. If it has cancelled
-- none, the live jobs are running, and their cancellation is requested. It gives up before Postgres
-- searches for deadlocks (1 s): an app's transaction that submits twice may wait for us while we
-- wait for it, and it must not be the one that is aborted. So submits never wait longer than that.
create or replace function penstock.erase_account(p_account text, p_rows integer default 500)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '800ms'
as $$
declare
  v_last boolean := penstock._is_empty(p_account);
  v_account penstock.account;
  v_erasure penstock.erasure;
  v_receipt jsonb;
  v_cancelled integer;
  v_live bigint;
  v_keys integer;
  v_erased record;
begin
  if p_rows is null or p_rows not between 1 and 100000 then
    perform penstock._refuse(422, 'invalid_limit', 'rows must be 1 to 100000', 'rows');
  end if;
  if v_last then
    -- Wait for open submits that have read the name: they hold their queue's lock shared, and take
    -- it before the account's row.
    perform pg_advisory_xact_lock(1886413172, q.id) -- guard: no open submit
    from (select o.id from penstock.queue o order by o.id) q;
    v_last := penstock._is_empty(p_account); -- guard: still empty
  end if;
  v_account := penstock._lock_account(p_account);
  select * into v_erasure from penstock.erasure e where e.account_id = v_account.id;
  if not found then
    insert into penstock.erasure (account_id, at, receipt)
    values (v_account.id, penstock.clock(), jsonb_build_object(
      'pseudonym', 'erased-' || v_account.id, 'jobs', 0, 'uploads', 0, 'keys', 0, 'webhooks', 0))
    returning * into v_erasure;
  end if;

  update penstock.api_key k set revoked_at = penstock.clock()
  where k.account_id = v_account.id and k.revoked_at is null;
  get diagnostics v_keys = row_count;
  -- Cancel waiting jobs, and request the cancellation of running ones.
  select count(*) into v_cancelled from penstock._finish_waiting(
    array(
      select j.id from penstock.job j
      where j.account_id = v_account.id and j.account_id <> 0
        and j.status in ('scheduled', 'queued')
      order by j.id limit p_rows for update skip locked),
    'cancelled',
    '{"class": "cancelled", "message": "its account is being erased", "retryable": false}',
    array[v_account.id]);
  perform penstock._request_cancel(array(
    select r.id from penstock.job r
    where r.account_id = v_account.id and r.account_id <> 0
      and r.status in ('running', 'awaiting') and r.cancel_requested_at is null
    order by r.id limit p_rows for update skip locked));
  select count(*) into v_live from penstock.job j
  where j.account_id = v_account.id and j.account_id <> 0;
  if v_live = 0 then
    -- Delete idempotency records before their jobs, which show the account. They have no index by
    -- job, so all of them are read once, not in each step.
    if v_erasure.receipt ->> 'jobs' = '0' then
      delete from penstock.idempotency i
      where i.job_id in (
        select f.id from penstock.finished f
        where f.account_id = v_account.id and f.account_id <> 0);
    end if;
  end if;
  -- Delete nothing while jobs are live.
  select * into v_erased
  from penstock._erase_rows(v_account.id, case when v_live = 0 then p_rows else 0 end);
  v_receipt := v_erasure.receipt || jsonb_build_object(
    'jobs', (v_erasure.receipt ->> 'jobs')::bigint + v_erased.jobs,
    'uploads', (v_erasure.receipt ->> 'uploads')::bigint + v_erased.uploads,
    'keys', (v_erasure.receipt ->> 'keys')::bigint + v_keys,
    'webhooks', (v_erasure.receipt ->> 'webhooks')::bigint + v_erased.webhooks);
  if v_last then
    -- Remove the name, and the counters of its submits.
    delete from penstock.recent_submit r where r.account_id = v_account.id;
    update penstock.api_key k set name = null where k.account_id = v_account.id;
    update penstock.account a set name = null where a.id = v_account.id;
    v_receipt := v_receipt || jsonb_build_object('at', penstock._rfc3339(penstock.clock()),
      'kept', (
        select jsonb_build_object('ledger_lines', count(*),
          'with_words', count(*) filter (where l.ref is not null or l.reason is not null))
        from penstock.ledger l where l.account_id = v_account.id));
  end if;
  update penstock.erasure e set receipt = v_receipt, at = penstock.clock()
  where e.id = v_erasure.id;
  return v_receipt
    || jsonb_build_object('done', v_last, 'live', v_live, 'cancelled', v_cancelled);
end
$$;
