-- Send webhooks, signed messages to apps about finished jobs. The transaction that finishes a job
-- writes a row in `delivery`; workers send it until the receiver accepts it or the last try fails.
--
--   due (next_at <= now) -- claim_deliveries --> being sent (sending_until) -- report_delivery -->
--     delivered (delivered_at) | due again after a delay | given up (next_at null, not delivered)
--
-- The claim first moves next_at ahead: if a worker dies while it sends, the delivery is due again
-- when the lease is over. So a message may arrive twice, always with the same id.

-- Whether a text has the form of an address for webhooks. Its target is checked at each call.
create or replace function penstock._is_webhook_url(p_url text) returns boolean
language sql immutable parallel safe
as $$ select length(p_url) <= 2000 and p_url ~ '^https?://[^/?#[:space:]@]+([/?#][!-~]*)?$' $$;

-- The webhook address among the options of a kind.
create or replace function penstock._option_webhook(p_options jsonb) returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
  if coalesce(p_options -> 'webhook', 'null') <> 'null' and not coalesce(
    jsonb_typeof(p_options -> 'webhook') = 'string'
      and penstock._is_webhook_url(p_options ->> 'webhook'), false)
  then
    perform penstock._refuse(422, 'invalid_option',
      'webhook must be an address of at most 2000 characters that begins with http:// or https:// '
      'and holds no user or password', 'webhook');
  end if;
  return p_options ->> 'webhook';
end
$$;

-- Records deliveries for jobs that have just finished. Called with every finish.
create or replace function penstock._record_deliveries(p_jobs uuid[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := penstock.clock();
  v_seed uuid;
begin
  -- Most installations have none: they pay two reads of small tables.
  if not exists (select from penstock.kind k where k.webhook is not null)
    and not exists (select from penstock.job_webhook)
  then
    return;
  end if;
  v_seed := penstock.new_id(v_now);
  with wanted as (
    delete from penstock.job_webhook w using unnest(p_jobs) u (id)
    where w.job_id = u.id
    returning w.job_id, w.url
  )
  insert into penstock.delivery (id, job_id, account_id, event, url, host, trusted, created_at,
    next_at)
  select penstock._nth_id(v_seed, row_number() over (order by f.id, t.trusted)), f.id,
    f.account_id, 'job.' || f.status, t.url,
    coalesce(lower(substring(t.url from '^[^:/?#]+://([^/?#]+)')), ''), t.trusted, f.finished_at,
    v_now
  from unnest(p_jobs) u (id)
  join penstock.finished f on f.id = u.id
  cross join lateral (
    select k.webhook, true from penstock.kind k where k.id = f.kind_id and k.webhook is not null
    union all
    select o.url, false from wanted o where o.job_id = f.id
  ) t (url, trusted);
end
$$;

-- Hosts with due deliveries, from the one after p_after on. Nearly always few deliveries are due.
-- If many are, the backlog of one host would hide the others, so the index is read host by host.
create or replace function penstock._due_hosts(p_now timestamptz, p_after text) returns setof text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_hosts text[] := array(
    select d.host from penstock.delivery d
    where d.next_at <= p_now order by d.next_at limit 1000);
begin
  if cardinality(v_hosts) = 1000 then
    v_hosts := array(
      with recursive waiting (host, next_at) as (
        (select d.host, d.next_at from penstock.delivery d
         where d.next_at is not null order by d.host, d.next_at limit 1)
        union all
        select n.host, n.next_at from waiting w cross join lateral (
          select d.host, d.next_at from penstock.delivery d
          where d.next_at is not null and d.host > w.host order by d.host, d.next_at limit 1
        ) n
      )
      select w.host from waiting w where w.next_at <= p_now);
  end if;
  return query
  select h.host from (select distinct u.host from unnest(v_hosts) u (host)) h
  order by h.host <= p_after, h.host;
end
$$;

-- Claims due deliveries: from each host as many as may be sent to it at once, host by host from
-- p_after on. So the cost depends on the number of hosts, however long the backlog of one is.
-- Claims nothing while another worker claims, so that the number for each host is exact.
create or replace function penstock.claim_deliveries(
  p_limit integer, p_lease interval, p_after text default ''
) returns table (
  id uuid, try integer, job_id uuid, event text, url text, host text, trusted boolean,
  account text, created_at timestamptz, job text
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz := penstock.clock();
begin
  if not exists (select from penstock.delivery d where d.next_at <= v_now)
    or not pg_try_advisory_xact_lock(1886413181, 1)
  then
    return;
  end if;
  -- After the lease, the worker of a delivery is dead and does not send any more.
  update penstock.delivery d set sending_until = null
  where d.sending_until is not null and d.sending_until <= v_now;
  return query
  with chosen as materialized (
    select d.id, h.n, penstock._status_of(d.job_id) is not null as kept
    from penstock._due_hosts(v_now, p_after) with ordinality h (host, n)
    cross join lateral (
      select o.id, o.job_id from penstock.delivery o
      where o.host = h.host
        and o.next_at <= v_now -- guard: due
      order by o.next_at
      -- Two messages at a time to one host, from all workers together.
      limit 2 - (
        select count(*) from penstock.delivery s
        where s.host = h.host and s.sending_until is not null)
      for no key update skip locked
    ) d
    order by h.n limit p_limit
  ),
  given_up as (
    update penstock.delivery d set next_at = null, last_at = v_now,
      last_error = 'the job is no longer kept'
    from chosen c where d.id = c.id and not c.kept
  ),
  taken as (
    update penstock.delivery d set tries = d.tries + 1, last_at = v_now,
      next_at = v_now + p_lease, sending_until = v_now + p_lease
    from chosen c where d.id = c.id and c.kept
    returning d.*, c.n, penstock._read_job(d.job_id, null) as job
  )
  select t.id, t.tries, t.job_id, t.event, t.url, t.host, t.trusted, a.name, t.created_at,
    -- An address that a submit named is a customer's.
    (case when t.trusted then t.job else penstock._public_job(t.job) end)::text
  from taken t left join penstock.account a on a.id = t.account_id
  order by t.n;
end
$$;

create or replace function penstock.any_delivery_due() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select exists (select from penstock.delivery d where d.next_at <= penstock.clock()) $$;

-- Records the outcome of a try. p_over: the receiver does not exist any more, so do not try again.
-- p_after: how long the receiver asked to wait. A late report of an earlier try counts only if the
-- message was accepted.
create or replace function penstock.report_delivery(
  p_id uuid, p_try integer, p_taken boolean, p_status integer default null,
  p_error text default null, p_over boolean default false, p_after interval default null
) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := penstock.clock();
  -- Null after the last try.
  v_wait interval := (array['5 seconds', '30 seconds', '2 minutes', '10 minutes', '1 hour',
    '4 hours', '12 hours', '24 hours']::interval[])[p_try];
begin
  update penstock.delivery d set sending_until = null, last_at = v_now, last_status = p_status,
    last_error = case when not p_taken then left(p_error, 500) end,
    delivered_at = case when p_taken then v_now end,
    -- With a random part, so that messages that failed together are not all sent together.
    next_at = case when not p_taken and not p_over and v_wait is not null
      then v_now + greatest(v_wait * (0.9 + 0.2 * random()),
        case when p_after is not null then least(p_after, interval '1 hour') end) end
  where d.id = p_id
    and (p_taken or d.tries = p_try) -- guard: its try
    and d.delivered_at is null; -- guard: not taken
  return (select penstock._delivery_status(d) from penstock.delivery d where d.id = p_id);
end
$$;

create or replace function penstock._delivery_status(p_delivery penstock.delivery) returns text
language sql immutable parallel safe
as $$
  select case when p_delivery.delivered_at is not null then 'delivered'
    when p_delivery.next_at is null then 'given_up' else 'pending' end
$$;

-- A delivery as JSON. p_own: for the holder of the account, without the path of the address, which
-- may be a secret of the app.
create or replace function penstock._delivery_json(p_delivery penstock.delivery, p_own boolean)
returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('id', p_delivery.id, 'job', p_delivery.job_id,
    'account', (select a.name from penstock.account a where a.id = p_delivery.account_id),
    'type', p_delivery.event, 'url', case when p_own
      then substring(p_delivery.url from '^[^/]+//[^/?#]+') else p_delivery.url end,
    'status', penstock._delivery_status(p_delivery), 'tries', p_delivery.tries,
    'created_at', penstock._rfc3339(p_delivery.created_at),
    'last_at', penstock._rfc3339(p_delivery.last_at), 'last_status', p_delivery.last_status,
    'last_error', p_delivery.last_error,
    'next_at', penstock._rfc3339(p_delivery.next_at),
    'delivered_at', penstock._rfc3339(p_delivery.delivered_at))
$$;

-- Deliveries, newest first. p_account: of this account, without those to the operator's own
-- addresses. p_owner: of this account, for an operator.
create or replace function penstock.list_deliveries(
  p_account text default null, p_owner text default null, p_job uuid default null,
  p_status text default null, p_limit integer default 50, p_before uuid default null
) returns setof jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $$
declare
  v_account bigint := (
    select a.id from penstock.account a where a.name = coalesce(p_account, p_owner));
begin
  if p_limit is null or p_limit not between 1 and 1000 then
    perform penstock._refuse(422, 'invalid_filter', 'limit must be 1 to 1000', 'limit');
  end if;
  if p_status not in ('pending', 'delivered', 'given_up') then
    perform penstock._refuse(422, 'invalid_filter',
      'status must be one of pending, delivered, given_up', 'status');
  end if;
  return query
  select penstock._delivery_json(d, p_account is not null) from penstock.delivery d
  where (coalesce(p_account, p_owner) is null or d.account_id = v_account) -- guard: own
    and (p_account is null or not d.trusted) -- guard: not the operator's
    and (p_job is null or d.job_id = p_job)
    and (p_status is null or penstock._delivery_status(d) = p_status)
    -- Implied by the status; this condition makes the planner use the partial index.
    and (p_status is null or p_status = 'delivered' or d.delivered_at is null)
    and (p_before is null or d.id < p_before)
  order by d.id desc limit p_limit;
end
$$;

-- Makes a delivery due again with all its tries, with the same id. One that is being sent is left
-- as it is.
create or replace function penstock.replay_delivery(p_id uuid, p_account text default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_delivery penstock.delivery;
begin
  select d.* into v_delivery from penstock.delivery d
  where d.id = p_id
    and (p_account is null or (not d.trusted -- guard: own
      and d.account_id = (select a.id from penstock.account a where a.name = p_account)))
  for no key update;
  if not found then
    perform penstock._refuse(404, 'unknown_webhook', format('there is no webhook %s', p_id), 'id',
      p_hint => 'Delivered webhooks are kept for 7 days, those given up for 30.');
  end if;
  if penstock._status_of(v_delivery.job_id) is null then
    perform penstock._refuse(409, 'job_not_kept', 'the job of this webhook is no longer kept',
      'id');
  end if;
  if v_delivery.sending_until is null or v_delivery.sending_until <= penstock.clock() then
    update penstock.delivery d set tries = 0, next_at = penstock.clock(), delivered_at = null,
      sending_until = null
    where d.id = p_id returning d.* into v_delivery;
  end if;
  return penstock._delivery_json(v_delivery, p_account is not null);
end
$$;
