-- What a browser was given and what may be over before its time: a session of the dashboard that
-- was signed out, a token of an account that was erased. Both are signed and not stored, so what
-- is stored is that they are over.

create or replace function penstock.end_session(p_id text, p_expires timestamptz) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  insert into penstock.ended_session (id, expires_at) values (p_id, p_expires)
  on conflict (id) do nothing
$$;

-- Of these, those that are over, by their place. p_sessions: ids of sessions; p_accounts: names of
-- accounts that tokens of p_issued are for; null where there is none.
--
-- A token names an account by its name, since an app makes tokens without the database, perhaps
-- before the account's first job. So it is over if the account of that name was made after the
-- token, and an account was erased in between, which may have been the one that the token meant.
-- The row of an erased account has a smaller number than those made later. An account that waited
-- for the erasure to commit may have read the clock before it: hence the minute.
create or replace function penstock.find_ended_grants(
  p_sessions text[], p_accounts text[], p_issued timestamptz[]
) returns setof bigint
language sql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
  select g.n
  from unnest(p_sessions, p_accounts, p_issued) with ordinality g (session, account, issued, n)
  where false
    or exists (select from penstock.ended_session s where s.id = g.session) -- guard: signed out
    -- First what is one comparison for nearly all tokens: nobody was erased since.
    or g.issued <= (select max(e.at) from penstock.erasure e) and exists ( -- guard: erased
      select from penstock.account a
      join penstock.erasure e on e.account_id < a.id and e.at >= g.issued
        and e.at <= a.created_at + interval '1 minute'
      where a.name = g.account and a.created_at > g.issued)
$$;
