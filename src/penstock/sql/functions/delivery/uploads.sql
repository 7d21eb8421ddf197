-- Files that payloads and results refer to as {"upload": id}. They are stored here in parts, so
-- that every worker and server can read them, they are written and erased with the other data, and
-- no disk is shared. An upload belongs to one account (0: no account), and only jobs of that
-- account may refer to it.

-- How much may be uploaded for an account now, to be read before a file is received. Only
-- create_upload decides: others may have uploaded meanwhile.
create or replace function penstock.upload_room(
  p_account text, out most_bytes bigint, out quota_bytes bigint, out used_bytes bigint
)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select s.upload_max_bytes, s.upload_quota_bytes, (
    select coalesce(sum(u.size), 0) from penstock.upload u
    where u.account_id = (select a.id from penstock.account a where a.name = p_account))
  from penstock.setting s
$$;

-- Creates an upload, in the transaction in which its parts follow. p_quota: whether the account's
-- quota applies; a file that a job makes is not refused, but counts towards the quota.
create or replace function penstock.create_upload(
  p_account text, p_content_type text, p_size bigint, p_sha256 bytea, p_quota boolean default true
) returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_setting penstock.setting;
  v_account bigint := 0;
  v_used bigint;
  v_id uuid := penstock.new_id(penstock.clock());
begin
  select * into v_setting from penstock.setting;
  if p_content_type is null
    or p_content_type !~ '^[a-z0-9!#$&^_.+-]{1,60}/[a-z0-9!#$&^_.+-]{1,120}$'
  then
    perform penstock._refuse(422, 'invalid_upload',
      'content_type must be a media type like image/png', 'content_type');
  end if;
  if p_size > v_setting.upload_max_bytes then
    perform penstock._refuse(413, 'upload_too_large',
      format('a file may have at most %s bytes', v_setting.upload_max_bytes), 'file',
      jsonb_build_object('most_bytes', v_setting.upload_max_bytes));
  end if;
  if length(p_account) not between 1 and 200 then
    perform penstock._refuse(422, 'invalid_upload',
      'account must be a text of 1 to 200 characters', 'account');
  end if;
  if p_account is not null then
    perform penstock._ensure_accounts(array[p_account], v_setting.accounts_strict);
    v_account := penstock._find_account(p_account);
  end if;
  if p_quota and v_account <> 0 then
    -- One after the other: two files that fit alone may not fit together.
    perform pg_advisory_xact_lock(1886413179, hashint8(v_account));
    v_used := (penstock.upload_room(p_account)).used_bytes;
    if v_used + p_size > v_setting.upload_quota_bytes then
      perform penstock._refuse(413, 'upload_quota_exceeded',
        format('the files of account %s may have %s bytes together; there are %s', p_account,
               v_setting.upload_quota_bytes, v_used), 'file',
        jsonb_build_object('quota_bytes', v_setting.upload_quota_bytes, 'used_bytes', v_used),
        p_hint => 'Delete some that no job needs any more.');
    end if;
  end if;
  insert into penstock.upload (id, account_id, content_type, size, sha256, created_at, used_at)
  values (v_id, v_account, p_content_type, p_size, p_sha256, penstock.clock(),
    -- The result of a job refers to the file that it made.
    case when not p_quota then penstock.clock() end);
  return v_id;
end
$$;

create or replace function penstock.add_upload_part(p_upload uuid, p_n integer, p_data bytea)
returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$ insert into penstock.upload_part (upload_id, n, data) values (p_upload, p_n, p_data) $$;

-- Finds an upload. p_account: the account it must belong to ('': none); null: any.
create or replace function penstock.find_upload(p_upload uuid, p_account text default null)
returns table (id uuid, account text, content_type text, size bigint, sha256 bytea)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select u.id, a.name, u.content_type, u.size, u.sha256
  from penstock.upload u left join penstock.account a on a.id = u.account_id
  where u.id = p_upload
    and (p_account is null or p_account = case u.account_id when 0 then '' else a.name end);
  if not found then
    perform penstock._refuse(404, 'unknown_upload', format('there is no upload %s', p_upload),
      'upload', jsonb_build_object('upload', p_upload));
  end if;
end
$$;

create or replace function penstock.read_upload_part(p_upload uuid, p_n integer) returns bytea
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select p.data from penstock.upload_part p where p.upload_id = p_upload and p.n = p_n $$;

create or replace function penstock.delete_upload(p_upload uuid, p_account text default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform penstock.find_upload(p_upload, p_account);
  delete from penstock.upload_part p where p.upload_id = p_upload;
  delete from penstock.upload u where u.id = p_upload;
end
$$;

-- Marks uploads as used, because a job refers to them. Returns those that do not exist or belong to
-- another account. The account of the job is found as in a submit: from the caller, the payload or
-- the kind.
create or replace function penstock.use_uploads(
  p_kind text, p_account text, p_payload jsonb, p_uploads uuid[]
) returns setof uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_account text := coalesce(p_account, (
    select coalesce(p_payload ->> k.account_field, k.account_fixed)
    from penstock.kind k where k.name = p_kind));
  v_owner bigint := case when v_account is null then 0 else
    coalesce((select a.id from penstock.account a where a.name = v_account), -1) end;
begin
  update penstock.upload u set used_at = penstock.clock()
  where u.id = any (p_uploads) and u.account_id = v_owner
    -- Once a minute at most: a file that all jobs share must not be updated with each of them.
    and (u.used_at is null or u.used_at < penstock.clock() - interval '1 minute');
  return query
  select w.id from unnest(p_uploads) w (id)
  where not exists (
    select from penstock.upload u where u.id = w.id and u.account_id = v_owner);
end
$$;

-- Deletes uploads that no job used within a day, and those whose last use is longer ago than the
-- retention of uploads.
create or replace function penstock.sweep_uploads(p_most integer default 500) returns integer
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  with swept as materialized (
    select u.id from penstock.upload u
    where u.created_at < penstock.clock() - interval '1 day' and coalesce(
      u.used_at < penstock.clock() - (select t.upload_kept from penstock.setting t), true)
    order by u.created_at limit p_most for update skip locked
  ),
  parts as (
    delete from penstock.upload_part p using swept s where p.upload_id = s.id
  ),
  uploads as (
    delete from penstock.upload u using swept s where u.id = s.id returning u.id
  )
  select count(*)::integer from uploads
$$;
