-- Who may call the HTTP API and open the dashboard.

-- Only a hash of a key is stored: a stolen copy of this table gives no access.
create table penstock.api_key (
  -- The public part of a key, by which it is found.
  id text primary key,
  kind text not null,
  account_id bigint references penstock.account,
  name text,
  -- The first of a row of keys that replaced one another: idempotency keys are stored under its id.
  holder text not null,
  secret_hash bytea not null,
  created_at timestamptz not null,
  expires_at timestamptz,
  used_at timestamptz,
  revoked_at timestamptz,
  constraint kind_is_known check (kind in ('admin', 'process', 'app', 'account')),
  constraint account_key_has_account check ((kind = 'account') = (account_id is not null)),
  constraint name_is_short check (length(name) between 1 and 200)
);
create index api_key_account_idx on penstock.api_key (account_id) where account_id is not null;

-- Sessions of the dashboard that were signed out before they expired: no server accepts their
-- cookies. Kept a day longer than the cookie, since the clocks of servers differ.
create table penstock.closed_session (
  -- A hash of the session's id in the cookie.
  id text primary key,
  expires_at timestamptz not null
);
create index closed_session_expires_idx on penstock.closed_session (expires_at);
