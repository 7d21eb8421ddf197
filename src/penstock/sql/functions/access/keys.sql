-- Keys to the HTTP API. The caller makes a key and shows it once; only its hash is stored here.

create or replace function penstock._key_json(p_key penstock.api_key) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('id', p_key.id, 'kind', p_key.kind,
    'account', (select a.name from penstock.account a where a.id = p_key.account_id),
    'name', p_key.name, 'created_at', penstock._rfc3339(p_key.created_at),
    'expires_at', penstock._rfc3339(p_key.expires_at),
    'last_used_at', penstock._rfc3339(p_key.used_at),
    'revoked_at', penstock._rfc3339(p_key.revoked_at))
$$;

create or replace function penstock.create_key(
  p_id text, p_kind text, p_hash bytea, p_account text default null, p_name text default null,
  p_expires interval default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_key penstock.api_key;
begin
  perform penstock._refuse(422, 'invalid_key', w.message, w.field) from (values
    ('kind', 'kind must be one of admin, process, app, account',
     coalesce(p_kind, '') not in ('admin', 'process', 'app', 'account')),
    ('account', 'a key of kind account is for one account, and no other kind has one',
     (p_kind = 'account') <> (p_account is not null)),
    ('name', 'name must be a text of 1 to 200 characters', length(p_name) not between 1 and 200),
    ('expires_seconds', 'expires must be more than 0 and at most ten years',
     p_expires <= interval '0' or p_expires > interval '3650 days')
  ) w (field, message, is_wrong)
  where w.is_wrong;
  insert into penstock.api_key (id, kind, account_id, name, secret_hash, created_at, expires_at,
    holder)
  values (p_id, p_kind, case when p_account is not null then penstock._find_account(p_account) end,
    p_name, p_hash, penstock.clock(), penstock.clock() + p_expires, p_id)
  returning * into v_key;
  return penstock._key_json(v_key);
end
$$;

create or replace function penstock.find_key(p_id text)
returns table (
  id text, kind text, account text, secret_hash bytea, expires_at timestamptz,
  revoked_at timestamptz, is_over boolean, holder text
)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select k.id, k.kind, a.name, k.secret_hash, k.expires_at, k.revoked_at,
    k.revoked_at is not null or coalesce(k.expires_at <= penstock.clock(), false),
    case when k.account_id is not null then 'account:' || k.account_id
      else 'key:' || k.holder end
  from penstock.api_key k left join penstock.account a on a.id = k.account_id
  where k.id = p_id
$$;

-- Records the last use to the minute: a key in constant use must not be written all the time.
create or replace function penstock.touch_keys(p_ids text[]) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  update penstock.api_key k set used_at = penstock.clock()
  where k.id = any (p_ids)
    and (k.used_at is null or k.used_at < penstock.clock() - interval '1 minute')
$$;

-- Newest first; p_after: the last key of the previous page.
create or replace function penstock.list_keys(
  p_account text default null, p_limit integer default 1000, p_after text default null
) returns setof jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform penstock._refuse_odd_limit(p_limit);
  return query
  select penstock._key_json(k) from penstock.api_key k
  where (p_account is null or k.account_id = penstock._find_account(p_account))
    and (p_after is null or (k.created_at, k.id) < (
      select a.created_at, a.id from penstock.api_key a where a.id = p_after))
  order by k.created_at desc, k.id desc limit p_limit;
end
$$;

create or replace function penstock.revoke_key(p_id text) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_key penstock.api_key;
begin
  update penstock.api_key k set revoked_at = coalesce(k.revoked_at, penstock.clock())
  where k.id = p_id
  returning * into v_key;
  if not found then
    perform penstock._refuse_unknown_key(p_id);
  end if;
  return penstock._key_json(v_key);
end
$$;

create or replace function penstock._refuse_unknown_key(p_id text) returns void
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select penstock._refuse(404, 'unknown_key', format('there is no key %s', p_id), 'id',
    p_hint => 'The id is the part between the kind and the secret; `penstock key list` shows all.')
$$;

-- Makes a new key that replaces another. The old one works for p_overlap more, so that the two can
-- be exchanged wherever it is used. The new one is valid for as long as the old one was made for.
create or replace function penstock.rotate_key(
  p_id text, p_new text, p_hash bytea, p_overlap interval
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := penstock.clock();
  v_old penstock.api_key;
  v_key penstock.api_key;
begin
  if p_overlap is null or p_overlap < interval '0' or p_overlap > interval '90 days' then
    perform penstock._refuse(422, 'invalid_key', 'overlap must be 0 or more and at most 90 days',
      'overlap_seconds');
  end if;
  select * into v_old from penstock.api_key k where k.id = p_id for update;
  if not found then
    perform penstock._refuse_unknown_key(p_id);
  end if;
  if v_old.revoked_at is not null or v_old.expires_at <= v_now then
    perform penstock._refuse(409, 'key_is_over',
      format('key %s has expired or was revoked, so it cannot be rotated', p_id), 'id',
      p_hint => 'Create a new one.');
  end if;
  update penstock.api_key k
  set expires_at = least(k.expires_at, v_now + p_overlap)
  where k.id = p_id;
  insert into penstock.api_key (id, kind, account_id, name, secret_hash, created_at, expires_at,
    holder)
  values (p_new, v_old.kind, v_old.account_id, v_old.name, p_hash, v_now,
    v_now + (v_old.expires_at - v_old.created_at), v_old.holder)
  returning * into v_key;
  return penstock._key_json(v_key);
end
$$;
