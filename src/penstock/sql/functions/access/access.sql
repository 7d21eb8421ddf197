-- Jobs and batches for callers who may see only some of them: an account key, or a token for a job
-- or a topic. Jobs of others get the same answer as jobs that do not exist; their own are returned
-- as customers see them (public.sql).

create or replace function penstock._refuse_unknown_job(p_id uuid) returns void
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select penstock._refuse(404, 'unknown_job', format('there is no job %s', p_id), 'id',
    p_hint => 'Finished jobs are kept for the retention of their queue.')
$$;

-- p_account, p_topic, p_only: the account, topic and job to which the caller is restricted; null:
-- no restriction. A caller without restrictions may also ask for jobs that do not exist.
create or replace function penstock._may_see(
  p_id uuid, p_account text, p_topic text, p_only uuid
) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
  v_account bigint;
begin
  if p_only <> p_id then -- guard: only
    return false;
  end if;
  if p_account is null and p_topic is null then
    return true;
  end if;
  select a.id into v_account from penstock.account a where a.name = p_account;
  perform from penstock.job j
  where j.id = p_id
    and (p_account is null or j.account_id = v_account) -- guard: account
    and (p_topic is null or j.topic = p_topic); -- guard: topic
  if not found then
    perform from penstock.finished f
    where f.id = p_id
      and (p_account is null or f.account_id = v_account) -- guard: account of ended
      and (p_topic is null or f.topic = p_topic); -- guard: topic of ended
  end if;
  return found;
end
$$;

create or replace function penstock._refuse_foreign_job(
  p_id uuid, p_account text, p_topic text, p_only uuid
) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
  if not penstock._may_see(p_id, p_account, p_topic, p_only) then -- guard: foreign
    perform penstock._refuse_unknown_job(p_id);
  end if;
end
$$;

create or replace function penstock.read_job_of(
  p_id uuid, p_account text default null, p_topic text default null, p_only uuid default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if num_nonnulls(p_account, p_topic, p_only) = 0 then
    return penstock._read_job(p_id, penstock._counted_positions());
  end if;
  perform penstock._refuse_foreign_job(p_id, p_account, p_topic, p_only);
  return penstock._public_job(penstock._read_job(p_id, penstock._counted_positions()));
end
$$;

-- As read_job_of, for many callers; no row for a job that does not exist or is not the caller's.
create or replace function penstock.read_jobs_of(
  p_ids uuid[], p_accounts text[] default null, p_topics text[] default null,
  p_onlys uuid[] default null
) returns table (ordinal bigint, job jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
  select r.ordinal, case when r.bound then penstock._public_job(r.job) else r.job end
  from (
    select u.ordinal, num_nonnulls(u.account, u.topic, u.only_job) > 0 as bound,
      penstock._read_job(u.id, penstock._counted_positions(), p_must_exist => false) as job
    from unnest(p_ids, p_accounts, p_topics, p_onlys) with ordinality
      u (id, account, topic, only_job, ordinal)
    where case when num_nonnulls(u.account, u.topic, u.only_job) > 0
      then penstock._may_see(u.id, u.account, u.topic, u.only_job) -- guard: theirs
      else true end
    offset 0 -- or each mention of the job below would read it again
  ) r
  where r.job is not null;
end
$$;

create or replace function penstock.cancel_job_of(
  p_id uuid, p_account text default null, p_topic text default null, p_only uuid default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform penstock._refuse_foreign_job(p_id, p_account, p_topic, p_only);
  return case when num_nonnulls(p_account, p_topic, p_only) > 0
    then penstock._public_job(penstock.cancel_job(p_id)) else penstock.cancel_job(p_id) end;
end
$$;

create or replace function penstock.retry_job_of(p_id uuid, p_account text default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform penstock._refuse_foreign_job(p_id, p_account, null, null);
  return case when p_account is not null
    then penstock._public_job(penstock.retry_job(p_id)) else penstock.retry_job(p_id) end;
end
$$;
