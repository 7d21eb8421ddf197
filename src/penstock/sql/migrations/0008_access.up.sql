-- Sessions of the dashboard that were signed out before their time: their cookies open nothing, at
-- any server. Kept a day longer than the cookie, since clocks of servers differ.
create table penstock.ended_session (
  -- A hash of what the cookie names.
  id text primary key,
  expires_at timestamptz not null
);
create index ended_session_expires_idx on penstock.ended_session (expires_at);

-- Whether accounts were erased since a token was made. One row per erased account.
-- squawk-ignore require-concurrent-index-creation
create index erasure_at_idx on penstock.erasure (at);
