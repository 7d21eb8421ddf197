-- Sessions of the dashboard that were signed out, and tokens of accounts that were erased: both
-- stop being valid before they expire. Both are signed and not stored, so only their end is stored.

create or replace function penstock.end_session(p_id text, p_expires timestamptz) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  insert into penstock.closed_session (id, expires_at) values (p_id, p_expires)
  on conflict (id) do nothing
$$;

-- The positions in the arrays of those that are no longer valid. p_sessions: ids of sessions;
-- p_accounts: names of the accounts whose tokens were issued at p_issued; null: none.
--
-- A token has the name of its account, since an app makes tokens without the database, perhaps
-- before the account's first job. So it is invalid if the account of that name was created after
-- the token, and if an account was erased in between, which may have been the token's account. The
-- row of an erased account has a smaller number than rows created later.
-- An account whose creation waited for the erasure to commit may have read the clock before it:
-- hence the minute.
create or replace function penstock.find_revoked_grants(
  p_sessions text[], p_accounts text[], p_issued timestamptz[]
) returns setof bigint
language sql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
  select g.n
  from unnest(p_sessions, p_accounts, p_issued) with ordinality g (session, account, issued, n)
  where false
    or exists (select from penstock.closed_session s where s.id = g.session) -- guard: signed out
    -- First a comparison that settles nearly all tokens: no account was erased since.
    or g.issued <= (select max(e.at) from penstock.erasure e) and exists ( -- guard: erased
      select from penstock.account a
      join penstock.erasure e on e.account_id < a.id and e.at >= g.issued
        and e.at <= a.created_at + interval '1 minute'
      where a.name = g.account and a.created_at > g.issued)
$$;
