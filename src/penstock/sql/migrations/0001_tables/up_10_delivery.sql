-- What happens after a job finished: on_finish callbacks, webhooks; and callbacks from outside.

-- Finished jobs whose on_finish callback has not run yet.
create table penstock.pending_on_finish (
  job_id uuid primary key,
  kind_id integer not null,
  tries integer not null default 0,
  next_at timestamptz not null
);
create index pending_on_finish_next_idx on penstock.pending_on_finish (kind_id, next_at);

-- The URL to call when a job finishes, as its caller asked; it becomes a delivery then.
create table penstock.job_webhook (
  job_id uuid primary key,
  url text not null,
  constraint url_is_short check (length(url) between 1 and 2000)
);

-- Webhooks: written in the transaction that finishes the job, sent by workers until the receiver
-- accepts them.
create table penstock.delivery (
  -- The same in every try, so that the receiver recognises a message that it has.
  id uuid primary key,
  job_id uuid not null,
  account_id bigint not null,
  created_at timestamptz not null,
  -- When it is tried again; null: it was accepted, or given up.
  next_at timestamptz,
  -- Until when a worker may be sending it; null: no worker is.
  sending_until timestamptz,
  last_at timestamptz,
  delivered_at timestamptz,
  tries integer not null default 0,
  last_status integer,
  -- The URL is from the operator, and may be a private address; else it is from a caller.
  trusted boolean not null,
  event text not null,
  url text not null,
  -- Host and port of the URL: a host that does not answer delays only its own deliveries.
  host text not null,
  last_error text,
  constraint taken_is_over check (delivered_at is null or next_at is null)
) with (fillfactor = 80);
create index delivery_due_idx on penstock.delivery (next_at) where next_at is not null;
create index delivery_host_idx on penstock.delivery (host, next_at) where next_at is not null;
create index delivery_sending_idx on penstock.delivery (host) where sending_until is not null;
create index delivery_job_idx on penstock.delivery (job_id);
create index delivery_account_idx on penstock.delivery (account_id, id);
create index delivery_created_idx on penstock.delivery (created_at);
create index delivery_open_idx on penstock.delivery (id) where delivered_at is null;

-- Signed callbacks that were accepted, so that a repeated message does not count twice.
create table penstock.seen_callback (
  signature bytea primary key,
  seen_at timestamptz not null
);
create index seen_callback_idx on penstock.seen_callback (seen_at);
